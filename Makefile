# Every target says what it does: make help.

SHELL := /bin/sh
.DEFAULT_GOAL := help

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.0.0-dev)
LDFLAGS  = -s -w -X main.version=$(VERSION)

# What make itself builds is kept in bin/, which git ignores.
TOOLS    = bin/tools
LINTER   = $(TOOLS)/golangci-lint

# Arguments for one's own runs, e.g. make test TESTFLAGS='-run TestPlan ./admission/'
TESTFLAGS  ?= ./...
BENCHFLAGS ?=
CHAOSFLAGS ?=

# Under make a missing database or queue server is a failure, not a skip.
TESTENV = LANEGATE_TEST_PG=require LANEGATE_TEST_SQS=require LANEGATE_TEST_NODE="$$(scripts/find-node.sh)"

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## build bin/lanegate, static, with its version
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/lanegate ./cmd/lanegate

.PHONY: deps
deps: ## install what the tests need and this machine lacks (PostgreSQL, PgBouncer, node, an SQS server)
	@scripts/install-test-deps.sh

.PHONY: test
test: deps ## run every test, on SQLite and PostgreSQL
	$(TESTENV) $(GO) test -shuffle=on -timeout 30m $(TESTFLAGS)

# Not e2e: what it tests is a process of its own, built without the detector; see race-chaos.
.PHONY: race
race: deps ## run every test but e2e under the race detector
	$(TESTENV) $(GO) test -race -shuffle=on -timeout 30m $(if $(filter ./...,$(TESTFLAGS)),$$($(GO) list ./... | grep -v '/e2e$$'),$(TESTFLAGS))

.PHONY: race-chaos
race-chaos: deps ## run the chaos tests against a gateway built with the race detector
	LANEGATE_E2E_RACE=1 $(TESTENV) $(GO) test -count=1 -run Chaos -timeout 30m $(CHAOSFLAGS) ./e2e/

.PHONY: lint
lint: $(LINTER) ## check form: gofmt, vet, go fix, linters, direction of imports, shell syntax
	scripts/check-source.sh
	$(GO) vet ./...
	$(GO) -C bench vet ./...
	$(LINTER) run ./...
	cd bench && ../$(LINTER) run ./...

.PHONY: generate
generate: ## write the generated files again (openapi/)
	$(GO) generate ./...

.PHONY: verify
verify: $(LINTER) ## check that generated files, go.mod and the pins are as they must be
	scripts/check-generated.sh
	scripts/check-modules.sh
	scripts/check-tracked.sh
	scripts/check-import-rules.sh $(LINTER)

.PHONY: vuln
vuln: $(TOOLS)/govulncheck $(TOOLS)/vulngate $(TOOLS)/vulndb/index/db.json ## look for known vulnerabilities, offline; the standard library's are only reported
	$(TOOLS)/govulncheck -db "file://$(CURDIR)/$(TOOLS)/vulndb" -test -format json ./... >bin/vuln.json
	$(TOOLS)/vulngate <bin/vuln.json

.PHONY: bench-deps
bench-deps: ## install what the benchmarks need and this machine lacks (redis-server, PostgreSQL)
	@bench/setup.sh

.PHONY: bench
bench: bench-deps build ## measure the built gateway beside other queues, in half an hour; tables in bin/bench (docs/performance.md)
	cd bench && $(GO) run ./compare -binary ../bin/lanegate -out ../bin/bench $(BENCHFLAGS)

.PHONY: bench-quick
bench-quick: bench-deps build ## the same in five minutes: sizes, not digits
	cd bench && $(GO) run ./compare -quick -binary ../bin/lanegate -out ../bin/bench $(BENCHFLAGS)

.PHONY: soak
soak: bench-deps build ## half of the peak for half an hour (SOAK=2h): what grows? curves in bin/bench/soak.svg
	cd bench && $(GO) run ./compare -soak $(or $(SOAK),30m) -binary ../bin/lanegate -out ../bin/bench

.PHONY: benchstat
benchstat: $(TOOLS)/benchstat ## compare the micro-benchmarks with another commit's (BASE=main)
	scripts/benchstat.sh $(TOOLS)/benchstat $(or $(BASE),HEAD) $(BENCHFLAGS)

.PHONY: chaos
chaos: deps ## break everything under load, many rounds (LANEGATE_CHAOS_ROUNDS=100), and judge the history
	LANEGATE_CHAOS_ROUNDS=$${LANEGATE_CHAOS_ROUNDS:-100} $(TESTENV) $(GO) test -count=1 -v -run Chaos -timeout 3h $(CHAOSFLAGS) ./e2e/

.PHONY: image
image: ## build the container image lanegate:VERSION with buildah
	scripts/image.sh build '$(VERSION)'

.PHONY: image-check
image-check: build ## build the image around bin/lanegate without an image registry, and start it
	scripts/image.sh check '$(VERSION)'

.PHONY: clean
clean: ## remove bin/ and what the tests installed below test/
	rm -rf bin test/sqs/node_modules test/sqs/node

# The tools have modules of their own, so that none of their dependencies is one of lanegate's.
$(LINTER): tools/go.mod tools/go.sum
	$(GO) -C tools build -trimpath -o ../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(TOOLS)/benchstat: tools/perf/go.mod
	$(GO) -C tools/perf build -trimpath -o ../../$@ golang.org/x/perf/cmd/benchstat

$(TOOLS)/govulncheck: tools/vuln/go.mod tools/vuln/go.sum
	$(GO) -C tools/vuln build -trimpath -o ../../$@ golang.org/x/vuln/cmd/govulncheck

$(TOOLS)/vulngate: tools/vuln/go.mod $(wildcard tools/vuln/vulngate/*.go)
	$(GO) -C tools/vuln test ./vulngate
	$(GO) -C tools/vuln build -trimpath -o ../../$@ ./vulngate

$(TOOLS)/vulndb/index/db.json: tools/vuln/go.mod tools/vuln/go.sum
	scripts/make-vulndb.sh $(TOOLS)/vulndb
