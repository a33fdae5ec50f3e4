# Every target installs what it needs with apt-get. Without apt-get, it prints what to install.

# These builds run once. Incremental data would be larger than the programs.
export CARGO_INCREMENTAL := 0

.DEFAULT_GOAL := help
.PHONY: help setup build install uninstall dist test package servers test-matrix check-prose docs screens test-faults test-fences test-kinds test-leaks test-distant test-setup test-dist test-docker test-server model sim demo demo-fence bench bench-waiting bench-program fuzz-node

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Installs what is missing: a server to test on, a C compiler, and libclang for the build
	@scripts/setup

build: setup ## Builds the module and the program (target/release/libquorlock.so, target/release/quorlock)
	cargo build --release --package quorlock --package quorlock-cli

install: ## Installs the result of `make build`: PREFIX=/usr/local DESTDIR=
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install

uninstall: ## Removes what `make install` has installed, except configurations: PREFIX=/usr/local DESTDIR=
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install --uninstall

dist: build ## Builds Debian packages and a tar.gz of the module and the program, with checksums (target/dist)
	@scripts/dist

demo: build ## Runs 8 workers with 200 locks on 5 masters, kills one master half-way: fails if an increment is lost
	@scripts/demo

demo-fence: setup ## Lets a holder write after its lock has ended: the database is wrong without the fence, and right with it
	cargo build --package quorlock
	cargo build --package quorlock-client --example fence_sqlite
	@cargo run --quiet --package quorlock-client --example fence_sqlite

test: setup ## Runs formatting checks, clippy, and all tests
	cargo fmt --all --check
	@scripts/check-prose
	cargo clippy --workspace --all-targets -- -D warnings
	cargo build --workspace
	cargo test --workspace --no-fail-fast
	cargo test --package quorlock-client --features metrics --test metrics
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

check-prose: ## Checks for phrases to avoid, long comments and broken links: PATHS=… KIND=link
	@scripts/check-prose $(if $(KIND),--kind $(KIND)) $(PATHS)

docs: ## Builds the book and the reference of the client, with checked links (target/doc/book, target/doc)
	@scripts/docs

screens: build ## Draws the output of top, status, inspect and doctor of five real masters: docs/img
	@scripts/screens

test-fences: setup ## Runs 8 processes on 5 masters through a minute of accidents: fails if a fence does not grow
	cargo build --package quorlock --package quorlock-faults
	cargo run --quiet --package quorlock-faults -- --fences 60
	cargo run --quiet --package quorlock-faults -- --fences 60 --unprotected

test-kinds: setup ## Runs 32 readers and 4 writers, then 16 clients for 4 permits, through a minute of accidents: fails if too many hold a lock
	cargo build --package quorlock --package quorlock-faults
	cargo run --quiet --package quorlock-faults -- --kinds 60
	cargo run --quiet --package quorlock-faults -- --kinds 60 --unprotected

fuzz-node: setup ## Runs a real server and its model through the same steps, and compares them after each: SEED=… STEPS=… (100,000)
	cargo build --package quorlock --package quorlock-faults
	@target/debug/quorlock-fuzz-node $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS)) $(if $(EPISODE),--episode $(EPISODE))

model: ## Explores every order of events among a few clients and masters, then breaks each rule once: fails if it does not notice that
	cargo build --release --package quorlock-sim
	@cargo run --release --quiet --package quorlock-sim --bin quorlock-model
	@cargo run --release --quiet --package quorlock-sim --bin quorlock-sim -- --compare

sim: ## Simulates whole fleets under a virtual clock, with random faults: SEEDS=… (1,000 of each kind of lock), or SEED=… KIND=… for the trace of one
	@cargo run --release --quiet --package quorlock-sim --bin quorlock-sim -- $(if $(KIND),--kind $(KIND)) $(if $(SEED),--seed $(SEED) --trace,--seeds $(or $(SEEDS),1000))

package: setup ## Builds the crates of the core and the client as they would be published
	cargo package --package quorlock-core --package quorlock-client

test-leaks: setup ## Drops, cancels or cuts off a million acquires: fails if a key, a task or a descriptor is left
	cargo build --release --package quorlock
	QUORLOCK_LEAKS_ACQUIRES=1000000 cargo test --release --package quorlock-client --test leaks -- --nocapture

test-distant: setup ## Acquires locks for a minute on masters that are 200 ms away, with the default settings: fails if one is not acquired
	cargo build --package quorlock
	QUORLOCK_DISTANT_S=60 cargo test --package quorlock-client --test limits -- --nocapture every_lock_is_acquired

test-setup: ## Runs setup on fresh Debian systems, builds the module there, and acquires a lock
	@scripts/test-setup $(SYSTEMS)

test-dist: dist ## Runs the packages and every command of docs/operations on fresh Debian systems (12 min): SYSTEMS="bookworm"
	@scripts/test-dist $(SYSTEMS)

test-docker: dist ## Runs contrib/docker without Docker: the lines of the Dockerfile, the services of compose.yaml (2 min)
	@scripts/test-docker

test-server: setup ## Runs the server's own tests without and with the module (20 min): UNITS="unit/multi"
	cargo build --release --package quorlock
	@scripts/test-server $(UNITS)

bench: setup ## Measures the tables of docs/benchmarks.md: server time, growth, waiters, locks per quorum, kinds of lock, and a failing node, with peers
	cargo build --release --package quorlock --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench

bench-waiting: setup ## Measures the table of docs/waiting.md: handover to waiters, and polling clients
	cargo build --release --package quorlock --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench -- --only waiting

bench-program: setup ## Measures the cost of `quorlock run` over the command alone
	cargo build --release --package quorlock --package quorlock-cli --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench -- --only program

servers: ## Unpacks newer Redis and Valkey servers for test-matrix (target/servers)
	@scripts/servers $(QUORLOCK_SERVERS)

test-matrix: setup ## Runs the tests of the module and of the faults on Redis 7.0 and 8.0, Valkey 8.1 and 9.1
	@scripts/test-matrix

test-faults: setup ## Runs every fault on a real server, with and without the protection, and two minutes of random accidents
	cargo build --package quorlock --package quorlock-faults
	cargo run --quiet --package quorlock-faults
	cargo run --quiet --package quorlock-faults -- --random 120
	cargo run --quiet --package quorlock-faults -- --random 120 --unprotected
