"""Measures specdec's native executor on request, with the protocol of llamacpp_worker.py."""

import json
import sys
import time
from pathlib import Path

from specdec_cli.bench.machine import peak_rss_mb
from specdec_cli.loader import LoadOptions, load_model
from specdec_cli.protocols import chain_rows


class Engine:
    """A model with one sequence; what is measured starts after the tokens of the last `fill`."""

    def load(self, request: dict) -> dict:
        """Load a model."""
        import specdec_cli.runtime.native_ops
        import specdec_cli.text.tokenizer  # noqa: F401

        options = LoadOptions(n_ctx=request["n_ctx"], threads=request["threads"])
        started = time.perf_counter()
        self._model = load_model(Path(request["model"]), options).model
        elapsed = time.perf_counter() - started
        self._sequence = self._model.create_sequence()
        return {"seconds": elapsed, "n_vocab": self._model.n_vocab, "engine": f"specdec {self._model.isa}"}

    def fill(self, request: dict) -> dict:
        """Start over with a number of tokens."""
        self._model.truncate(self._sequence, 0)
        for start in range(0, request["tokens"], 512):
            count = min(512, request["tokens"] - start)
            self._forward(start, count, 0)
            self._model.commit(self._sequence, range(count))
        self._prefix = request["tokens"]
        return {}

    def measure_pass(self, request: dict) -> dict:
        """One pass with logits of all rows, not committed."""
        return {"seconds": self._forward(self._prefix, request["rows"], request["rows"])}

    def prefill(self, request: dict) -> dict:
        """A prompt from the start with logits of the last row."""
        self._model.truncate(self._sequence, 0)
        return {"seconds": self._forward(0, request["tokens"], 1)}

    def decode(self, request: dict) -> dict:
        """Token after token."""
        started = time.perf_counter()
        for position in range(self._prefix, self._prefix + request["tokens"]):
            self._forward(position, 1, 1)
            self._model.commit(self._sequence, [0])
        seconds = time.perf_counter() - started
        self._model.truncate(self._sequence, self._prefix)
        return {"seconds": seconds}

    def memory(self, request: dict) -> dict:
        """Peak resident size."""
        return {"peak_mb": peak_rss_mb()}

    def _forward(self, start: int, count: int, outputs: int) -> float:
        tokens = [(7919 * i + 13) % (self._model.n_vocab - 300) for i in range(start, start + count)]
        rows = chain_rows(self._sequence, start, tokens, outputs)
        started = time.perf_counter()
        self._model.forward(rows)
        return time.perf_counter() - started


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
