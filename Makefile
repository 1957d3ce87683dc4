# Every target sets up what it needs first; what is already there is not made again.
SHELL := bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench colcon clean distclean

ARGS ?=
NAME ?= capsule
WORKERS ?= 2
ENV := source scripts/env.sh

help: ## show this list
	@echo 'flashrt_ros: make TARGET [ARGS="..."]'
	grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' \
	  | while IFS='|' read -r name text; do printf '  %-10s %s\n' "$$name" "$$text"; done

setup: ## make .venv with everything in it (the other targets do this too)
	@scripts/bootstrap

demo: setup ## run the robot: two episodes, an interrupt, a re-entry, a reset; pictures in runs/latest/
	@$(ENV)
	flashrt demo $(ARGS)

test: setup lint ## lint, the repository's own checks, and every test; ARGS goes to pytest
	@$(ENV)
	python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: setup ## ruff and mypy
	@$(ENV)
	python -m ruff check --quiet .
	python -m ruff format --check --quiet .
	check() { python -m mypy --no-error-summary -p flashrt_ros -p flashrt_policies -p flashrt_sim; }
	# Its cache misses modules that were added since; before it fails it looks anew.
	check >/dev/null || { rm -rf .cache/mypy; check; }

bench: setup ## one benchmark: make bench NAME=capsule ARGS="--json out.json"
	@$(ENV)
	flashrt bench $(NAME) $(ARGS)

colcon: setup ## build both packages with colcon, as on a robot, into install/
	@$(ENV)
	python -m colcon build --base-paths . interfaces $(ARGS)

clean: ## remove builds, caches and runs
	@rm -rf build install log runs .cache .ruff_cache *.egg-info
	find . -path ./.venv -prune -o -name __pycache__ -exec rm -rf {} +

distclean: clean ## ... and the environment
	@rm -rf .venv
