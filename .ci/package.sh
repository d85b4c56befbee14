#!/bin/sh
# build/: a copy of the template and the state machines beside one prebuilt functions/ folder, so that `sam deploy` zips
# and uploads the same bytes once for all functions. Lambda takes at most 250 MB unzipped and ray[default] alone is more,
# so what its job client never imports is left out. The last step proves, under Lambda's own Python, that nothing is missing.
set -eu

target=build/functions
limit_mib=240

rm -rf build
mkdir -p "$target"
python=.venv-functions/bin/python

echo "== downloading for Lambda: Python 3.12, x86_64"
# One package has no wheel, only pure Python source: it is made into a wheel first, for pip builds nothing for another platform.
"$python" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir build/wheels \
    "$(grep '^toolkit-for-ray-on-sagemaker-ai==' functions/requirements.txt)"
grep -v '^toolkit-for-ray-on-sagemaker-ai==' functions/requirements.txt >build/requirements.txt
"$python" -m pip install -qq --disable-pip-version-check --no-deps --no-compile --target "$target" \
    --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux_2_34_x86_64 \
    --python-version 3.12 --implementation cp --only-binary=:all: \
    -r build/requirements.txt build/wheels/*.whl

echo "== leaving out what the job client does not import"
(
    cd "$target"
    rm -rf bin ray/jars ray/rllib ray/data ray/tune ray/serve ray/llm ray/train ray/air ray/cpp ray/dashboard/client \
        ray/core/src/ray/gcs ray/core/src/ray/raylet ray/core/libjemalloc.so
    find . -name tests -type d -path './ray/*' -prune -exec rm -rf {} +
)
cp -R functions/nightshift "$target/"
find "$target" -name __pycache__ -type d -prune -exec rm -rf {} +
cp template.yaml build/
cp -R statemachine build/
rm -rf build/wheels build/requirements.txt

size=$(du -sm "$target" | cut -f1)
if [ "$size" -gt "$limit_mib" ]; then
    echo "$target has $size MiB; Lambda takes 250 MB unzipped" >&2
    exit 1
fi

echo "== importing every handler from it, and nothing else"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$version" = 3.12 ]; then
    AWS_DEFAULT_REGION=us-east-1 "$python" -W ignore -I -S - <<'PY'
import importlib
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, "build/functions")
for path in sorted(pathlib.Path("functions/nightshift/handlers").glob("[a-z]*.py")):
    importlib.import_module(f"nightshift.handlers.{path.stem}")
for name in ("adapters.ray_jobs", "adapters.kubernetes", "adapters.hyperpod", "adapters.identity"):
    importlib.import_module(f"nightshift.{name}")
import ray.job_submission
import sagemaker_core.main.resources
import sagemaker_ray
PY
else
    echo "   not done: .venv-functions has Python $version, and the artifact is for 3.12"
fi

echo "build/ is ready ($size MiB). Next: sam deploy --parameter-overrides HyperPodClusterName=... EksClusterName=..."
