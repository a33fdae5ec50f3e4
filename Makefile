# Every target installs what it needs where apt-get can, and says what to install where it cannot.

# What is built here is built once, and what a compiler keeps for the next time is larger than the programs.
export CARGO_INCREMENTAL := 0

.DEFAULT_GOAL := help
.PHONY: help setup build install uninstall dist test package servers test-matrix check-prose docs screens test-faults test-fences test-leaks test-distant test-setup test-dist test-docker test-server model sim demo demo-fence bench bench-waiting bench-program fuzz-node

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Installs what is missing: a server to test on, a C compiler, and libclang for the build
	@scripts/setup

build: setup ## Builds the module and the program (target/release/libquorlock.so, target/release/quorlock)
	cargo build --release --package quorlock --package quorlock-cli

install: ## Installs what `make build` has built: PREFIX=/usr/local DESTDIR=
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install

uninstall: ## Removes what `make install` has installed, but no configuration: PREFIX=/usr/local DESTDIR=
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install --uninstall

dist: build ## Debian packages and a tar.gz of the module and the program, with checksums (target/dist)
	@scripts/dist

demo: build ## 8 workers, 200 locks, 5 masters, one of them killed half-way: fails if an increment is lost
	@scripts/demo

demo-fence: setup ## A holder that sleeps past its lock and then writes: the database is wrong without the fence, and right with it
	cargo build --package quorlock
	cargo build --package quorlock-client --example fence_sqlite
	@cargo run --quiet --package quorlock-client --example fence_sqlite

test: setup ## Formatting, clippy, and all tests
	cargo fmt --all --check
	@scripts/check-prose --kind link
	cargo clippy --workspace --all-targets -- -D warnings
	cargo build --workspace
	cargo test --workspace --no-fail-fast
	cargo test --package quorlock-client --features metrics --test metrics
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

check-prose: ## Phrases to avoid, long comments and broken links: PATHS=… KIND=link
	@scripts/check-prose $(if $(KIND),--kind $(KIND)) $(PATHS)

docs: ## Builds the book and the reference of the client, with checked links (target/doc/book, target/doc)
	@scripts/docs

screens: build ## Draws what top, status, inspect and doctor show of five real masters: docs/img
	@scripts/screens

test-fences: setup ## 8 processes, 5 masters, a minute of accidents: fails if a fence is not larger than the one before it
	cargo build --package quorlock --package quorlock-faults
	cargo run --quiet --package quorlock-faults -- --fences 60
	cargo run --quiet --package quorlock-faults -- --fences 60 --unprotected

fuzz-node: setup ## One real server and the model of it take the same steps, and must agree after each: SEED=… STEPS=… (100,000)
	cargo build --package quorlock --package quorlock-faults
	@target/debug/quorlock-fuzz-node $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS)) $(if $(EPISODE),--episode $(EPISODE))

model: ## All that can happen to a few clients and masters, in every order; and every rule broken once, which must be noticed
	cargo build --release --package quorlock-sim
	@cargo run --release --quiet --package quorlock-sim --bin quorlock-model
	@cargo run --release --quiet --package quorlock-sim --bin quorlock-sim -- --compare

sim: ## Whole fleets under a virtual clock, with faults that a seed draws: SEEDS=… (1,000), or SEED=… for the trace of one
	@cargo run --release --quiet --package quorlock-sim --bin quorlock-sim -- $(if $(SEED),--seed $(SEED) --trace,--seeds $(or $(SEEDS),1000))

package: setup ## What would be published of the core and the client, built by itself
	cargo package --package quorlock-core --package quorlock-client

test-leaks: setup ## A million acquires that are dropped, cancelled or cut off: fails if a key, a task or a descriptor is left
	cargo build --release --package quorlock
	QUORLOCK_LEAKS_ACQUIRES=1000000 cargo test --release --package quorlock-client --test leaks -- --nocapture

test-distant: setup ## A minute of locks on masters that are 200 ms away, with the default settings: fails if one is not acquired
	cargo build --package quorlock
	QUORLOCK_DISTANT_S=60 cargo test --package quorlock-client --test limits -- --nocapture every_lock_is_acquired

test-setup: ## Runs setup on fresh Debian systems, builds the module there, and acquires a lock
	@scripts/test-setup $(SYSTEMS)

test-dist: dist ## Runs the packages and every command of docs/operations on fresh Debian systems (12 min): SYSTEMS="bookworm"
	@scripts/test-dist $(SYSTEMS)

test-docker: dist ## Runs contrib/docker without Docker: the lines of the Dockerfile, the services of compose.yaml (2 min)
	@scripts/test-docker

test-server: setup ## The server's own tests without and with the module (20 min): UNITS="unit/multi"
	cargo build --release --package quorlock
	@scripts/test-server $(UNITS)

bench: setup ## Server time, growth to three million leases, 10,000 waiters, locks per quorum, and one node out of order, beside their peers: the tables of docs/benchmarks.md
	cargo build --release --package quorlock --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench

bench-waiting: setup ## Handing a lock over to waiters, beside polling clients: the table of docs/waiting.md
	cargo build --release --package quorlock --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench -- --only waiting

bench-program: setup ## What `quorlock run` costs beside the command alone
	cargo build --release --package quorlock --package quorlock-cli --package quorlock-bench
	@cargo run --release --quiet --package quorlock-bench -- --only program

servers: ## Newer Redis and Valkey servers beside the installed one, for test-matrix (target/servers)
	@scripts/servers $(QUORLOCK_SERVERS)

test-matrix: setup ## The tests of the module and of the faults on Redis 7.0 and 8.0, Valkey 8.1 and 9.1
	@scripts/test-matrix

test-faults: setup ## Every fault on a real server, with the protection and without, and two minutes of accidents at random
	cargo build --package quorlock --package quorlock-faults
	cargo run --quiet --package quorlock-faults
	cargo run --quiet --package quorlock-faults -- --random 120
	cargo run --quiet --package quorlock-faults -- --random 120 --unprotected
