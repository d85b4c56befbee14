# Two commands do everything: `make demo` and `make test`. The rest are their parts.
.DEFAULT_GOAL := help
.PHONY: help demo up test test-upgrade test-skyrl skyrl-diff chaos chaos-few chaos-fake lint types schema openapi dashboard kubernetes lock package clean environments

# An environment is rebuilt when the text of its requirements changes: the stamp's name holds their checksum.
key = $(shell cat $(1) .ci/environment.sh | cksum | cut -d' ' -f1)

LAMBDA_LOCKS := functions/requirements.txt local/requirements-lambda.txt
DEMO_LOCKS   := functions/requirements.txt training_job/requirements.txt local/requirements.txt
TEST_LOCKS   := tests/requirements.txt
TOOLS_LOCKS  := tests/requirements-tools.txt
CHECKOV_LOCKS := tests/requirements-checkov.txt
SKYRL_LOCKS  := tests/requirements-skyrl.txt

FUNCTIONS := .venv-functions/.ready-$(call key,$(LAMBDA_LOCKS))
DEMO      := .venv/.demo-$(call key,$(DEMO_LOCKS))
TEST      := .venv/.test-$(call key,$(DEMO_LOCKS) $(TEST_LOCKS))
TOOLS     := .venv-tools/.ready-$(call key,$(TOOLS_LOCKS))
CHECKOV   := .venv-checkov/.ready-$(call key,$(CHECKOV_LOCKS))

SKYRL     := .venv-skyrl/.ready-$(call key,$(SKYRL_LOCKS))

# 3.11 first for everything but Lambda's own environment: AWS runs 3.12, so that is tried first there.
PYTHONS        := 3.11 3.12 3.13
LAMBDA_PYTHONS := 3.12 3.13 3.11

RUN := PYTHONPATH=functions:. .venv/bin/python

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(DEMO) $(FUNCTIONS) ## one training run, end to end, on this computer, through a node's death
	@$(RUN) -m local demo

up: $(DEMO) $(FUNCTIONS) ## the local stack alone; it runs until Ctrl-C
	@$(RUN) -m local up

test: $(TEST) $(FUNCTIONS) $(TOOLS) ## every check; says which ones this computer cannot run, and why
	@sh .ci/test.sh

test-local: $(TEST) $(FUNCTIONS) $(TOOLS) ## the local stack's own tests: its AWS, its Kubernetes, the template on them
	@sh .ci/test.sh apart

test-upgrade: $(TEST) $(FUNCTIONS) ## runs go on while the release before becomes this one, and back (a few minutes)
	@# Two calls: beside its own folder pytest drops a file that is no test by its name.
	@$(RUN) -m pytest -q tests/upgrade </dev/null
	@$(RUN) -m pytest -q tests/upgrade/running_work.py </dev/null

test-skyrl: $(SKYRL) ## the contract tests against SkyRL itself, without a GPU (1.8 GB in an environment of their own)
	@.venv-skyrl/bin/python -m pytest -q tests/skyrl </dev/null

skyrl-diff: $(SKYRL) ## NEW=x.y.z: what that version of SkyRL would change, and which contract tests fail with it
	@PYTHONPATH=functions:. .venv-skyrl/bin/python -m tests.skyrl.diff "$(NEW)"

chaos: $(DEMO) $(FUNCTIONS) ## real faults on this computer, each in a run of its own, and a table (about 20 minutes)
	@$(RUN) -m local chaos

chaos-few: $(DEMO) $(FUNCTIONS) ## the four of them that CI plays
	@$(RUN) -m local chaos --fewer

chaos-fake: $(TEST) ## 10,000 seeds of faults over whole runs in the fake world
	@$(RUN) -m tests.fakeworld.chaos --seeds 0:10000 --jobs 2

lint: $(TEST) $(TOOLS) $(CHECKOV) ## ruff, mypy, cfn-lint, checkov, hadolint, pip-audit, secrets: what reads the code and runs none of it
	@sh .ci/lint.sh

types: $(TEST) ## mypy --strict
	@.venv/bin/mypy

schema: $(TEST) openapi ## docs/runspec.schema.json, from the RunSpec model, and docs/openapi.json, which has it too
	@$(RUN) docs/write_schema.py

dashboard: $(TEST) ## docs/dashboard.json, and the same body in template.yaml
	@$(RUN) docs/write_dashboard.py

openapi: $(TEST) ## docs/openapi.json, from the API's models and routes
	@$(RUN) docs/write_openapi.py

lock: $(TEST) $(TOOLS) $(CHECKOV) ## the pinned requirements, from what the environments hold now
	@.venv/bin/python .ci/lock.py

NAMESPACE ?= nightshift
kubernetes: ## what the cluster needs, for NAMESPACE=...: make kubernetes | kubectl apply -f -
	@{ cat docs/rbac.yaml; echo ---; cat docs/network-policy.yaml; } | sed 's/^  namespace: nightshift$$/  namespace: $(NAMESPACE)/'

package: $(FUNCTIONS) ## build/: the template and the trimmed artifact that `sam deploy` uploads
	@sh .ci/package.sh

environments: $(TEST) $(FUNCTIONS) $(TOOLS) ## the virtual environments alone

clean: ## remove environments, builds, caches and what the demo left
	rm -rf .venv .venv-functions .venv-tools .venv-checkov .venv-skyrl .venv-previous node_modules build out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(FUNCTIONS):
	@sh .ci/environment.sh .venv-functions "$(LAMBDA_PYTHONS)" $(LAMBDA_LOCKS)
	@rm -f .venv-functions/.ready-* && touch $@

$(DEMO):
	@sh .ci/environment.sh .venv "$(PYTHONS)" $(DEMO_LOCKS) local/requirements-lambda.txt
	@rm -f .venv/.demo-* && touch $@

$(TEST): $(DEMO)
	@sh .ci/environment.sh .venv "$(PYTHONS)" $(TEST_LOCKS)
	@rm -f .venv/.test-* && touch $@

$(TOOLS):
	@sh .ci/environment.sh .venv-tools "$(PYTHONS)" $(TOOLS_LOCKS)
	@rm -f .venv-tools/.ready-* && touch $@

$(CHECKOV):
	@sh .ci/environment.sh .venv-checkov "$(PYTHONS)" $(CHECKOV_LOCKS)
	@rm -f .venv-checkov/.ready-* && touch $@

$(SKYRL):
	@PIP_IGNORE_REQUIRES_PYTHON=1 sh .ci/environment.sh .venv-skyrl 3.11 $(SKYRL_LOCKS)
	@rm -f .venv-skyrl/.ready-* && touch $@
