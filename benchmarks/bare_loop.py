"""The limit: a loop over llama_decode with nothing around it, in a process of its own. Prints tokens a second as JSON.

Greedy takes numpy's argmax over all lanes at once; sampled uses llama.cpp's own chain (top-k, top-p, min-p,
temperature, draw), one per lane.
"""

import argparse
import json
import time
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
import numpy.typing as npt

from benchmarks.quiet import silence_llama
from benchmarks.settings import SAMPLED

Int32Array = npt.NDArray[np.int32]


class Batch:
    """llama_batch with numpy views over its memory: one output token per lane, lanes in ascending order."""

    def __init__(self, lanes: int) -> None:
        self.raw = llama.llama_batch_init(lanes, 0, 1)
        self.raw.n_tokens = lanes
        self.tokens = np.ctypeslib.as_array(self.raw.token, (lanes,))
        self.positions = np.ctypeslib.as_array(self.raw.pos, (lanes,))
        np.ctypeslib.as_array(self.raw.n_seq_id, (lanes,))[:] = 1
        np.ctypeslib.as_array(self.raw.logits, (lanes,))[:] = 1
        for lane in range(lanes):
            self.raw.seq_id[lane][0] = lane


def open_context(options: argparse.Namespace) -> Any:
    """The model in a context with the lanes and the window that the servers get."""
    llama.llama_backend_init()
    silence_llama()
    model = llama.llama_model_load_from_file(options.model.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_seq_max = options.lanes
    params.n_ctx = options.lanes * options.window
    params.n_batch = 2048
    params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = options.threads
    params.kv_unified = False
    context = llama.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("the bare loop could not make a context")
    return context


def prefill(context: Any, prompts: Int32Array) -> None:
    """Reads the first ``prompts.shape[1] - 1`` tokens of each lane's prompt."""
    for lane, prompt in enumerate(prompts):
        count = len(prompt) - 1
        batch = llama.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for index in range(count):
            batch.token[index] = int(prompt[index])
            batch.pos[index] = index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = lane
            batch.logits[index] = 0
        if llama.llama_decode(context, batch) != 0:
            raise SystemExit("the bare loop's prefill failed")
        llama.llama_batch_free(batch)


def make_sampler(seed: int) -> Any:
    """llama.cpp's chain with the sampled scenario's settings."""
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_k(int(SAMPLED["top_k"])))
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_top_p(SAMPLED["top_p"], 1))
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_min_p(SAMPLED["min_p"], 1))
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_temp(SAMPLED["temperature"]))
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_dist(seed))
    return chain


def decode_rate(context: Any, prompts: Int32Array, steps: int, *, is_greedy: bool) -> float:
    """Tokens a second over ``steps`` steps of all lanes, the first step left out as the servers' first token is."""
    lanes = len(prompts)
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(llama.llama_get_model(context)))
    samplers = [] if is_greedy else [make_sampler(seed) for seed in range(lanes)]
    batch = Batch(lanes)
    batch.tokens[:] = prompts[:, -1]
    batch.positions[:] = prompts.shape[1] - 1
    started = 0.0
    for step in range(steps + 1):
        if llama.llama_decode(context, batch.raw) != 0:
            raise SystemExit("the bare loop's decode failed")
        if is_greedy:
            logits = np.ctypeslib.as_array(llama.llama_get_logits(context), (lanes, vocabulary))
            batch.tokens[:] = logits.argmax(axis=1)
        else:
            batch.tokens[:] = [llama.llama_sampler_sample(chain, context, lane) for lane, chain in enumerate(samplers)]
        batch.positions += 1
        if step == 0:
            started = time.perf_counter()
    return lanes * steps / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--mode", choices=["greedy", "sampled"], required=True)
    parser.add_argument("--clients", type=int, nargs="+", required=True)
    parser.add_argument("--lanes", type=int, required=True)
    parser.add_argument("--window", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()

    context = open_context(options)
    source = np.random.default_rng(1)
    rates: dict[str, float] = {}
    for clients in options.clients:
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        prompts = source.integers(1000, 20_000, size=(clients, options.prompt_tokens), dtype=np.int32)
        prefill(context, prompts)
        rates[str(clients)] = decode_rate(context, prompts, options.steps, is_greedy=options.mode == "greedy")
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
