from tests.job.support import Runs, small_spec
def test_x(runs: Runs):
    f = runs.run(small_spec("first"))
    print(f.output, f.outcome)
    print("\n".join(runs.keys("first")))
    assert f.code == 0
