"""Measures llama.cpp on request: JSON lines in, JSON lines out. Runs where llama-cpp-python is installed.

Requests: {"op": "load", "model", "threads", "n_ctx"}, {"op": "fill", "tokens"}, {"op": "pass", "rows"},
{"op": "prefill", "tokens"}, {"op": "decode", "tokens"}, {"op": "memory"}. Replies hold seconds.
"""

import ctypes
import json
import sys
import time
from pathlib import Path

import llama_cpp as lc


class Engine:
    """A model with one sequence; what is measured starts after the tokens of the last `fill`."""

    def load(self, request: dict) -> dict:
        """Load a model and make a context."""
        self._silent = lc.llama_log_callback(lambda level, text, data: None)
        lc.llama_log_set(self._silent, ctypes.c_void_p())
        lc.llama_backend_init()
        started = time.perf_counter()
        model = lc.llama_model_load_from_file(request["model"].encode(), lc.llama_model_default_params())
        if not model:
            raise SystemExit(f"llama.cpp could not load {request['model']}")
        params = lc.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = request["n_ctx"], 512, 512
        params.n_threads = params.n_threads_batch = request["threads"]
        self._context = lc.llama_init_from_model(model, params)
        elapsed = time.perf_counter() - started
        self._memory = lc.llama_get_memory(self._context)
        self._n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
        return {"seconds": elapsed, "n_vocab": self._n_vocab, "engine": f"llama-cpp-python {lc.__version__}"}

    def fill(self, request: dict) -> dict:
        """Start over with a number of tokens."""
        self._forget(0)
        for start in range(0, request["tokens"], 512):
            self._forward(start, min(512, request["tokens"] - start), all_logits=False)
        self._prefix = request["tokens"]
        return {}

    def measure_pass(self, request: dict) -> dict:
        """One pass with logits of all rows, taken back afterwards."""
        seconds = self._forward(self._prefix, request["rows"], all_logits=True)
        self._forget(self._prefix)
        return {"seconds": seconds}

    def prefill(self, request: dict) -> dict:
        """A prompt from the start with logits of the last row."""
        self._forget(0)
        return {"seconds": self._forward(0, request["tokens"], all_logits=False)}

    def decode(self, request: dict) -> dict:
        """Token after token."""
        started = time.perf_counter()
        for position in range(self._prefix, self._prefix + request["tokens"]):
            self._forward(position, 1, all_logits=True)
        seconds = time.perf_counter() - started
        self._forget(self._prefix)
        return {"seconds": seconds}

    def memory(self, request: dict) -> dict:
        """Peak resident size."""
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return {"peak_mb": next(int(x.split()[1]) / 1024 for x in lines if x.startswith("VmHWM"))}

    def _forget(self, start: int) -> None:
        lc.llama_memory_seq_rm(self._memory, 0, start, -1)

    def _forward(self, start: int, count: int, *, all_logits: bool) -> float:
        batch = lc.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for i in range(count):
            batch.token[i] = (7919 * (start + i) + 13) % (self._n_vocab - 300)
            batch.pos[i] = start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i == count - 1
        started = time.perf_counter()
        if lc.llama_decode(self._context, batch) != 0:
            raise SystemExit("llama_decode failed")
        lc.llama_get_logits_ith(self._context, count - 1)
        elapsed = time.perf_counter() - started
        lc.llama_batch_free(batch)
        return elapsed


def main() -> None:
    """Answer requests until stdin ends."""
    engine = Engine()
    operations = {
        "load": engine.load,
        "fill": engine.fill,
        "pass": engine.measure_pass,
        "prefill": engine.prefill,
        "decode": engine.decode,
        "memory": engine.memory,
    }
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(operations[request["op"]](request)), flush=True)


if __name__ == "__main__":
    main()
