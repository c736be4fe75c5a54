"""NativeModel as a LanguageModel: sequences, limits, errors, cancellation, threads, memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest

from quant.tensor import QuantTensor
from specdec_cli.errors import ContextError, ModelError, SpecdecError, StoppedError, UsageError
from specdec_cli.protocols import chain_rows
from specdec_cli.runtime import native_memory, native_ops
from specdec_cli.runtime.native_ops import NativeModel, _native


@pytest.fixture
def model(tiny_plan):
    return NativeModel(tiny_plan("llama"), n_ctx=64, threads=1)


def test_uncommitted_rows_leave_no_trace(model, lm):
    sequence = model.create_sequence()
    model.forward(chain_rows(sequence, 0, lm.ids[:5], 1))
    assert model.length(sequence) == 0
    model.forward(chain_rows(sequence, 0, lm.ids[:3], 1))
    model.commit(sequence, [0, 1])
    assert model.length(sequence) == 2


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_rows_may_be_committed_in_steps(model, lm, shape):
    sequence = model.create_sequence()
    nodes = [(token, i - 1) for i, token in enumerate(lm.ids[:5])]
    if shape == "tree":
        nodes.append((5, 0))
    model.forward(lm.tree(sequence, 0, nodes))
    model.commit(sequence, [0, 1])
    model.commit(sequence, [])
    model.commit(sequence, [2])
    assert model.length(sequence) == 3
    expected = lm.logits(model, lm.ids[:4], 4)[3:].copy()
    assert np.array_equal(model.forward(chain_rows(sequence, 3, lm.ids[3:4], 1)), expected)


@pytest.mark.parametrize("rows", [[1], [0, 2], [0, 0], [5], [-1], [1, 0]])
def test_only_paths_from_the_root_can_be_committed(model, lm, rows):
    sequence = model.create_sequence()
    model.forward(chain_rows(sequence, 0, lm.ids[:5], 1))
    with pytest.raises(ValueError, match=r"row -?\d"):
        model.commit(sequence, rows)
    assert model.length(sequence) == 0


def test_rows_of_another_sequence_cannot_be_committed(model, lm):
    first, second = model.create_sequence(), model.create_sequence()
    model.forward(lm.join(chain_rows(first, 0, lm.ids[:2], 1), chain_rows(second, 0, lm.ids[:2], 1)))
    with pytest.raises(ValueError, match="row 2 is not a pending row"):
        model.commit(first, [2])
    model.commit(second, [2, 3])
    model.commit(first, [0])
    assert (model.length(first), model.length(second)) == (1, 2)


def test_pending_rows_are_dropped_by_truncate_and_forward(model, lm):
    sequence = model.create_sequence()
    model.forward(chain_rows(sequence, 0, lm.ids[:2], 1))
    model.truncate(sequence, 0)
    with pytest.raises(ValueError, match="no pending rows"):
        model.commit(sequence, [0])
    model.forward(chain_rows(sequence, 0, lm.ids[:2], 1))
    model.forward(chain_rows(sequence, 0, lm.ids[:1], 1))
    with pytest.raises(ValueError, match="row 1 is not a pending row"):
        model.commit(sequence, [0, 1])


def test_d1_the_context_limit(model, lm):
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:60], 60)
    assert model.forward(chain_rows(sequence, 60, lm.ids[60:64], 1)).shape == (1, model.n_vocab)
    with pytest.raises(ContextError, match="the context is full: 65 tokens do not fit into 64"):
        model.forward(chain_rows(sequence, 60, lm.ids[60:65], 1))
    lm.feed(model, sequence, lm.ids[60:64], 4)
    with pytest.raises(ContextError):
        model.forward(chain_rows(sequence, 64, lm.ids[64:65], 1))
    model.truncate(sequence, 10)
    assert model.length(sequence) == 10


def test_unknown_sequences_are_errors(model):
    for call in (
        model.length,
        model.free_sequence,
        lambda s: model.truncate(s, 0),
        lambda s: model.fork_sequence(s, 0),
    ):
        with pytest.raises(ValueError, match="unknown sequence 7"):
            call(7)
    sequence = model.create_sequence()
    with pytest.raises(ValueError, match="cannot truncate to 1"):
        model.truncate(sequence, 1)
    with pytest.raises(ValueError, match="cannot fork at 1"):
        model.fork_sequence(sequence, 1)


def broken(rows, **changes):
    return replace(rows, **{name: np.asarray(value, np.int32) for name, value in changes.items()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [3, 4, 10**6]}, "row 2: token id 1000000 is not below"),
        ({"token_ids": [3, -1, 4]}, "row 1: token id -1"),
        ({"positions": [0, 1, 3]}, "row 2 has position 3; 2 is next"),
        ({"positions": [1, 2, 3]}, "row 0 has position 1; 0 is next"),
        ({"parents": [-1, 0, 2]}, "row 2: its parent 2 is not an earlier row"),
        ({"parents": [-1, 0, -2]}, "row 2: its parent -2"),
        ({"sequences": [0, 0, 5]}, "row 2: its parent 1"),
        ({"sequences": [9, 9, 9]}, "unknown sequence 9"),
        ({"outputs": [1, 0]}, "output rows are not ascending"),
        ({"outputs": [1, 1]}, "output rows are not ascending"),
        ({"outputs": [3]}, "output rows are not ascending"),
        ({"outputs": [-1]}, "output rows are not ascending"),
        ({"positions": [0, 1]}, "as many positions, sequences and parents as tokens"),
        ({"token_ids": [], "positions": [], "sequences": [], "parents": [], "outputs": []}, "needs rows"),
    ],
)
def test_rows_that_contradict_each_other(model, lm, changes, message):
    sequence = model.create_sequence()
    rows = chain_rows(sequence, 0, lm.ids[:3], 1)
    with pytest.raises(ValueError, match=message):
        model.forward(broken(rows, **changes))
    assert model.forward(rows).shape == (1, model.n_vocab)  # usable afterwards


def test_a_failed_sequence_does_not_leave_others_pending(model, lm):
    first, second = model.create_sequence(), model.create_sequence()
    lm.feed(model, second, lm.ids[:63], 63)
    batch = lm.join(chain_rows(first, 0, lm.ids[:2], 1), chain_rows(second, 63, lm.ids[:2], 1))
    with pytest.raises(ContextError):
        model.forward(batch)
    with pytest.raises(ValueError, match="no pending rows"):
        model.commit(first, [0])


def test_random_arguments_of_the_native_call_never_crash(model, lm):
    """Whatever the arrays hold, the outcome is logits or a ValueError."""
    generator = np.random.default_rng(0)
    sequence = model.create_sequence()
    outcomes = set()
    for _ in range(2000):
        n = int(generator.integers(0, 6))
        arrays = [generator.integers(-2, high, n).astype(np.int32) for high in (270, 70, 3, 5)]
        if generator.random() < 0.5:
            arrays[1:] = [
                np.arange(n, dtype=np.int32),
                np.full(n, sequence, np.int32),
                np.arange(-1, n - 1, dtype=np.int32),
            ]
        outputs = np.sort(generator.integers(-1, 7, int(generator.integers(0, 3)))).astype(np.int32)
        logits = np.empty((len(outputs), model.n_vocab), np.float32)
        try:
            model._executor.forward(*arrays, outputs, logits)
            outcomes.add("logits")
            model.commit(sequence, generator.integers(-1, 6, 2).tolist())
        except ValueError:
            outcomes.add("error")
    assert outcomes == {"logits", "error"}


def test_arrays_of_the_wrong_kind_are_type_errors(model):
    good = [np.zeros(1, np.int32)] * 3 + [np.full(1, -1, np.int32), np.zeros(1, np.int32)]
    logits = np.empty((1, model.n_vocab), np.float32)
    for wrong in (np.zeros(1, np.int64), np.zeros((1, 1), np.int32), np.zeros(4, np.int32)[::2], None, [0]):
        with pytest.raises(TypeError):
            model._executor.forward(wrong, *good[1:], logits)
    model.create_sequence()
    with pytest.raises(ValueError, match="logits array has the wrong shape"):
        model._executor.forward(*good, logits[:, :-1].copy())
    readonly = logits.copy()
    readonly.flags.writeable = False
    with pytest.raises(TypeError):
        model._executor.forward(*good, readonly)


def test_logits_that_are_held_keep_their_values(model, lm):
    sequence = model.create_sequence()
    first = model.forward(chain_rows(sequence, 0, lm.ids[:3], 3))
    copy = first.copy()
    second = model.forward(chain_rows(sequence, 0, lm.ids[3:6], 3))
    assert np.array_equal(first, copy)
    assert not np.array_equal(first, second)
    known = {first.ctypes.data, second.ctypes.data}
    del first, second
    for _ in range(4):
        assert model.forward(chain_rows(sequence, 0, lm.ids[:3], 3)).ctypes.data in known


def test_no_outputs_and_some_outputs(model, lm):
    sequence = model.create_sequence()
    rows = chain_rows(sequence, 0, lm.ids[:6], 6)
    everything = model.forward(rows).copy()
    assert model.forward(broken(rows, outputs=[])).shape == (0, model.n_vocab)
    assert np.array_equal(model.forward(broken(rows, outputs=[1, 4])), everything[[1, 4]])


def test_argmax_and_top_k_of_the_latest_forward(model, lm):
    sequence = model.create_sequence()
    logits = model.forward(chain_rows(sequence, 0, lm.ids[:6], 4))
    for row in range(4):
        ids, values = model.top_k(row, 5)
        assert model.argmax(row) == int(logits[row].argmax()) == ids[0]
        assert np.array_equal(ids, np.argsort(-logits[row], kind="stable")[:5])
        assert np.array_equal(values, logits[row][ids])
    with pytest.raises(ValueError, match="has 4 output rows"):
        model.top_k(4, 1)
    with pytest.raises(ValueError, match="has 4 output rows"):
        model.argmax(-1)


def test_logits_that_are_not_finite_are_an_error(tiny_plan, lm):
    plan = tiny_plan("llama", seed=3)
    broken_ops = []
    for op in plan.ops:
        weights = op.weights
        if op.kind == "rms_norm" and op is plan.ops[-2]:
            values = np.full(weights[0].shape, np.nan, np.float32).view(np.uint8)
            weights = (QuantTensor("output_norm", weights[0].qtype, weights[0].shape, values),)
        broken_ops.append(replace(op, weights=weights))
    model = NativeModel(replace(plan, ops=tuple(broken_ops)), n_ctx=64, threads=1)
    sequence = model.create_sequence()
    with pytest.raises(SpecdecError, match="not finite"):
        model.forward(chain_rows(sequence, 0, lm.ids[:3], 1))


def test_kv_bytes_count_shared_pages_once(tiny_plan, lm):
    model = NativeModel(tiny_plan("llama"), n_ctx=256, threads=1)
    page = model._executor.kv_page_bytes
    sequence = model.create_sequence()
    assert model.kv_bytes == 0
    lm.feed(model, sequence, lm.ids[:130], 130)
    assert model.kv_bytes == 3 * page
    fork = model.fork_sequence(sequence, 100)
    assert model.kv_bytes == 3 * page
    lm.feed(model, fork, lm.ids[:1], 1)
    assert model.kv_bytes == 4 * page
    model.free_sequence(sequence)
    assert model.kv_bytes == 2 * page
    model.free_sequence(fork)
    assert model.kv_bytes == 0


def test_m4_more_threads_than_cores_are_clamped_with_a_notice(tiny_plan, monkeypatch):
    monkeypatch.setattr(native_ops, "usable_cores", lambda: 2)
    model = NativeModel(tiny_plan("llama"), n_ctx=64, threads=64)
    assert model.threads == 2
    assert model.notices == ("64 threads were asked for; using 2, the physical cores this process may use",)
    assert NativeModel(tiny_plan("llama"), n_ctx=64).threads == 2
    with pytest.raises(UsageError, match="the number of threads is 0"):
        NativeModel(tiny_plan("llama"), n_ctx=64, threads=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": 0}, "the context size is 0"),
        ({"kv_type": "q4_0"}, "unknown KV type q4_0; available are f16, q8_0, f32"),
        ({"isa": "mmx"}, "unknown ISA 'mmx'"),
    ],
)
def test_wrong_options_are_usage_errors(tiny_plan, options, message):
    with pytest.raises((UsageError, ModelError), match=message):
        NativeModel(tiny_plan("llama"), **{"n_ctx": 64, "threads": 1, **options})


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(tiny_plan, monkeypatch):
    monkeypatch.setattr(native_ops, "available_memory", lambda: 1000)
    with pytest.raises(ModelError, match=r"not enough memory: memory \d+ MB \(weights .* available 0 MB"):
        NativeModel(tiny_plan("llama"), n_ctx=64, threads=1)


def test_the_memory_plan_covers_what_is_allocated(tiny_plan, lm):
    model = NativeModel(tiny_plan("gemma3"), n_ctx=256, threads=1)
    sequence = model.create_sequence()
    lm.feed(model, sequence, lm.ids[:150], 150)
    assert model.memory.weights == model._executor.weight_bytes
    assert model.memory.kv == 4 * model._executor.kv_page_bytes
    assert model.kv_bytes <= model.memory.kv
    assert model.memory.available is not None


def test_progress_counts_bytes(tiny_plan):
    seen = []
    NativeModel(tiny_plan("llama"), n_ctx=64, threads=1, progress=lambda *args: seen.append(args))
    done = [d for d, _ in seen]
    assert all(a < b for a, b in pairwise(done))
    assert done[-1] == seen[-1][1]


def test_pages_of_a_file_are_released_and_come_back(tmp_path):
    import mmap

    path = tmp_path / "weights"
    values = np.random.default_rng(0).integers(0, 256, 1 << 20).astype(np.uint8)
    path.write_bytes(values.tobytes())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapping, np.uint8)[12345:-777]
    tensor = QuantTensor("x", native_ops.F16, (len(data) // 2,), data[: len(data) // 2 * 2])
    native_memory.release_pages(tensor)
    assert np.array_equal(tensor.data, values[12345 : 12345 + len(tensor.data)])


def test_memory_of_the_process_is_never_released():
    data = np.arange(1 << 16, dtype=np.uint8)
    data.flags.writeable = False
    tensor = QuantTensor("x", native_ops.F16, (1 << 15,), data)
    native_memory.release_pages(tensor)
    assert np.array_equal(tensor.data, np.arange(1 << 16).astype(np.uint8))


def test_weights_without_kernels_are_converted_with_a_notice(tiny_plan, lm, monkeypatch):
    plan = tiny_plan("llama", file_type="Q8_0", n_embd=64, head_dim=16)
    monkeypatch.setattr(_native, "weight_types", lambda: ["F16", "F32"])
    model = NativeModel(plan, n_ctx=256, threads=1)
    assert model.notices == ("Q8_0 tensors are converted to F16",)
    monkeypatch.undo()
    expected = lm.logits(NativeModel(plan, n_ctx=256, threads=1), lm.ids, 150).copy()
    assert np.abs(lm.logits(model, lm.ids, 150) - expected).mean() < 0.06 * expected.std()


SLEEPING = """
import sys, time
from pathlib import Path
from quant.gguf_file import GgufFile
from specdec_cli.loader import build_plan
from specdec_cli.protocols import chain_rows
from specdec_cli.runtime.native_ops import NativeModel
file = GgufFile.open(Path(sys.argv[1]))
model = NativeModel(build_plan(file.metadata, file.tensors)[1], n_ctx=512, threads=2)
sequence = model.create_sequence()
rows = chain_rows(sequence, 0, [5] * 400, 1)
model.forward(rows)
print("ready", flush=True)
try:
    while True:
        model.forward(rows)
except KeyboardInterrupt:
    before = time.monotonic()
    assert model.forward(rows).shape[0] == 1
    print("usable", flush=True)
time.sleep(0.1)
used = time.process_time()
time.sleep(0.5)
print("idle", time.process_time() - used < 0.1, flush=True)
"""


def test_ctrl_c_stops_a_pass_and_an_idle_pool_uses_no_cpu(tiny_gguf):
    path = tiny_gguf("llama", n_layer=24, n_embd=256, n_ff=1024, n_head=8, head_dim=32)
    command = [sys.executable, "-c", SLEEPING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "usable\n"
        assert time.monotonic() - sent < 2  # 0.3 s and a pass, on a busy machine
        assert process.stdout.readline() == "idle True\n"
        assert process.wait() == 0


def forward_often(model, rows):
    for _ in range(1000):
        model.forward(rows)


def test_request_cancel_from_another_thread(tiny_gguf, tiny_plan, lm):
    model = NativeModel(tiny_plan("llama", n_layer=12, n_embd=768, n_ff=1024), n_ctx=512, threads=2)
    sequence = model.create_sequence()
    rows = chain_rows(sequence, 0, lm.ids * 3, 1)
    expected = model.forward(rows).copy()
    stop = threading.Event()

    def cancel_until_stopped():
        while not stop.wait(0.002):
            model.request_cancel()

    thread = threading.Thread(target=cancel_until_stopped)
    thread.start()
    try:
        with pytest.raises(StoppedError, match="cancelled"):
            forward_often(model, rows)
    finally:
        stop.set()
        thread.join()
    with pytest.raises(ValueError, match="no pending rows"):
        model.commit(sequence, [0])
    assert np.array_equal(model.forward(rows), expected)


def test_a_condition_stops_a_pass_that_has_begun(tiny_plan, lm):
    model = NativeModel(tiny_plan("llama", n_layer=12, n_embd=768, n_ff=1024), n_ctx=512, threads=1)
    sequence = model.create_sequence()
    rows = chain_rows(sequence, 0, lm.ids * 3, 1)
    expected = model.forward(rows).copy()
    asked = []
    model.stop_when(lambda: asked.append(1) or len(asked) > 1)  # not the first time: the pass is under way
    with pytest.raises(StoppedError, match="cancelled"):
        forward_often(model, rows)
    assert len(asked) == 2
    with pytest.raises(ValueError, match="no pending rows"):
        model.commit(sequence, [0])
    model.stop_when(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        forward_often(model, rows)
    model.stop_when(lambda: False)
    assert np.array_equal(model.forward(rows), expected)


def test_a_signal_handler_cannot_reenter_a_busy_model(tiny_plan, lm):
    model = NativeModel(tiny_plan("llama", n_layer=12, n_embd=768, n_ff=1024), n_ctx=512, threads=1)
    sequence = model.create_sequence()
    rows = chain_rows(sequence, 0, lm.ids * 3, 1)
    seen = []

    def handler(signum, frame):
        try:
            model.length(sequence)
        except RuntimeError as error:
            seen.append(str(error))

    previous = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
    try:
        deadline = time.monotonic() + 20
        while not seen and time.monotonic() < deadline:
            model.forward(rows)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert seen[0] == "the model is in use by this thread"


def test_two_python_threads_take_turns(tiny_plan, lm):
    model = NativeModel(tiny_plan("llama"), n_ctx=256, threads=2)
    expected = lm.logits(model, lm.ids, 10).copy()
    results = {}

    def work(name):
        results[name] = [lm.logits(model, lm.ids, 10).copy() for _ in range(10)]

    threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found, expected) for found in chain(*results.values()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_usable_after_fork(tiny_plan, lm):
    model = NativeModel(tiny_plan("llama"), n_ctx=256, threads=2)
    expected = lm.logits(model, lm.ids, 50).copy()
    child = os.fork()
    if child == 0:
        same = np.array_equal(lm.logits(model, lm.ids, 50), expected)
        os._exit(0 if same else 1)
    deadline = time.monotonic() + 20
    while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if status == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert status == (child, 0)
    assert np.array_equal(lm.logits(model, lm.ids, 50), expected)
