"""A process that is llama-server: the package xllamacpp carries the real one as a library, this gives it a command
line. It serves until it is told to end (SIGTERM)."""

import argparse
import signal
import threading

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--window", type=int, required=True, help="tokens of context per lane")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.lanes
    params.n_ctx = options.window * options.lanes
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.endpoint_metrics = True
    params.verbosity = 1

    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    is_over.wait()


if __name__ == "__main__":
    main()
