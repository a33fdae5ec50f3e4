# Targets install missing packages with apt-get. Without apt-get, they print what to install.

# Most builds here run once, and the data of an incremental build is larger than the programs.
export CARGO_INCREMENTAL := 0
# Most tests wait for servers and clocks.
export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(nproc || echo 2))))

.DEFAULT_GOAL := help
.PHONY: help setup build install uninstall dist test package servers test-matrix check-prose limits docs screens test-faults test-fences test-kinds test-leaks test-distant test-setup test-dist test-docker test-server model sim demo demo-fence bench bench-waiting bench-program fuzz-node wheel test-python bench-python

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Installs what is missing for builds and tests: a server, a C compiler, libclang, Prometheus
	@scripts/setup

build: setup ## Builds the module and the program (target/release/libquorlock.so, target/release/quorlock)
	cargo build --release --package quorlock --package quorlock-cli

install: ## Installs the result of `make build`: PREFIX=/usr/local DESTDIR=
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install

uninstall: ## Removes what `make install` has installed, except configurations: PREFIX=/usr/local DESTDIR=
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install --uninstall

dist: build ## Builds Debian packages and a tar.gz of the module and the program, with checksums (target/dist)
	@scripts/dist

demo: setup ## Increments a counter file 200 times from 8 workers, under a lock on 5 nodes of which one is killed: fails if an increment is lost
	cargo build --profile demo --package quorlock --package quorlock-cli
	@QUORLOCK=$(or $(CARGO_TARGET_DIR),target)/demo/quorlock scripts/demo

demo-fence: setup ## Lets a holder write after its lock has ended: the database is wrong without the fence, and right with it
	cargo build --package quorlock
	cargo build --package quorlock-client --example fence_sqlite
	@cargo run --quiet --package quorlock-client --example fence_sqlite

test: setup ## Checks formatting, prose, clippy and documentation, and runs all tests
	@$(call step,1,formatting and prose)
	cargo fmt --all --check
	@scripts/check-prose
	@$(call step,2,clippy)
	cargo clippy --workspace --all-targets -- -D warnings
	@$(call step,3,builds)
	cargo build --workspace
	cargo test --workspace --no-run
	@$(call step,4,tests)
	cargo test --workspace --no-fail-fast
	@$(call step,5,documentation)
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# step NUMBER,NAME: says how far `make test` is.
step = printf '\n== make test, step %s of 5: %s (%s)\n\n' '$(1)' '$(2)' "$$(date +%T)"

check-prose: ## Checks for phrases to avoid and comments over 100 columns: PATHS=…
	@scripts/check-prose $(PATHS)

limits: ## Writes the table of limits in ARCHITECTURE.md
	QUORLOCK_WRITE_LIMITS=1 cargo test --quiet --package quorlock --test module table_of_limits

docs: ## Builds the book and the reference of the client (target/doc/book, target/doc)
	@scripts/docs

screens: build ## Draws the output of demo, top, status, inspect and doctor (docs/img)
	@scripts/screens

test-fences: setup ## Runs 8 clients on 5 nodes through a minute of accidents: fails if a fence does not grow, or if all grow without the protection
	cargo build --package quorlock --package quorlock-faults
	cargo run --quiet --package quorlock-faults -- --storm fences
	cargo run --quiet --package quorlock-faults -- --storm fences --unprotected

test-kinds: setup ## Runs 32 readers and 4 writers, then 16 clients for 4 permits, through accidents: fails if too many hold a lock, or if that never happens without the protection
	cargo build --package quorlock --package quorlock-faults
	cargo run --quiet --package quorlock-faults -- --storm shared --storm permits
	cargo run --quiet --package quorlock-faults -- --storm shared --storm permits --unprotected

fuzz-node: setup ## Runs a real server and its model through the same steps, and compares them after each: SEED=… EPISODE=… STEPS=… (by default 100,000)
	cargo build --package quorlock --package quorlock-faults
	@target/debug/quorlock-faults --fuzz $(or $(STEPS),100000) $(if $(SEED),--seed $(SEED)) $(if $(EPISODE),--episode $(EPISODE))

model: ## Tries every order of events while a few calls and nodes agree on fences, then again with each rule broken: fails if a broken rule is not noticed
	@cargo run --release --quiet --package quorlock-sim -- --models

sim: ## Simulates whole fleets under a virtual clock, with random faults: SEEDS=… (by default 1,000 of each kind of lock), or SEED=… KIND=… for the trace of one fleet
	@cargo run --release --quiet --package quorlock-sim -- $(if $(KIND),--kind $(KIND)) $(if $(SEED),--seed $(SEED) --trace,--seeds $(or $(SEEDS),1000))

package: setup ## Builds the crates of the core and the client as they would be published
	cargo package --package quorlock-core --package quorlock-client

test-leaks: setup ## Drops, cancels or cuts off a million acquires: fails if a key, a task or a descriptor is left
	cargo build --release --package quorlock
	QUORLOCK_LEAKS_ACQUIRES=1000000 cargo test --release --package quorlock-client --test leaks -- --nocapture

test-distant: setup ## Acquires locks for a minute on nodes that are 200 ms away, with the default settings: fails if a lock is not acquired
	cargo build --package quorlock
	QUORLOCK_DISTANT_S=60 cargo test --package quorlock-client --test client -- --nocapture every_lock_is_acquired

test-setup: ## Runs setup on fresh Debian systems, builds the module there, and acquires a lock
	@scripts/test-setup $(SYSTEMS)

test-dist: dist ## Installs the packages on fresh Debian systems, and runs every command of docs/operations there (12 min): SYSTEMS="bookworm"
	@scripts/test-dist $(SYSTEMS)

test-docker: dist ## Builds contrib/docker with Docker, and acquires a lock on its nodes
	docker compose --file contrib/docker/compose.yaml up --build --wait
	docker compose --file contrib/docker/compose.yaml run --rm quorlock run demo -- echo "it works"
	docker compose --file contrib/docker/compose.yaml down

test-server: setup ## Runs the server's own tests without and with the module (20 min): UNITS="unit/multi"
	cargo build --release --package quorlock
	@scripts/test-server $(UNITS)

bench: setup ## Measures the tables of docs/benchmarks.md, for Quorlock and for its peers
	cargo build --release --package quorlock --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench

bench-waiting: setup ## Measures the table of waiting in docs/benchmarks.md: handover, and what waiters cost
	cargo build --release --package quorlock --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench -- --only waiting

bench-program: setup ## Measures the cost of `quorlock run` over the command alone
	cargo build --release --package quorlock --package quorlock-cli --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench -- --only program

servers: ## Unpacks newer Redis and Valkey servers for test-matrix (target/servers)
	@scripts/servers $(QUORLOCK_SERVERS)

test-matrix: setup ## Runs the tests of the module and of the faults on the installed server, Redis 8.0, Valkey 8.1 and the newest Valkey: MATRIX="--quick SERVER"
	@scripts/test-matrix $(MATRIX)

test-faults: setup ## Runs every fault on a real server, with and without the protection, and two minutes of random accidents
	cargo build --package quorlock --package quorlock-faults
	cargo run --quiet --package quorlock-faults
	cargo run --quiet --package quorlock-faults -- --storm exclusive --seconds 120
	cargo run --quiet --package quorlock-faults -- --storm exclusive --seconds 120 --unprotected

wheel: ## Builds the Python package: a wheel and a source distribution (target/wheels)
	@scripts/python wheel

test-python: setup ## Tests the Python package on the oldest and the newest Python of this machine: QUORLOCK_PYTHONS="python3.10 python3.13"
	cargo build --package quorlock
	@scripts/python test

bench-python: setup ## Measures the table of docs/python.md: the Python package, other libraries, and the Rust client
	@scripts/python bench
