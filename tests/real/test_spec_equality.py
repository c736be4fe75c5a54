"""Promise 1 on real models: the same ids with a draft model, with lookups and without both (A2, A7)."""

import json
from pathlib import Path

import pytest

from specdec_cli.decoding.drafters.draft_model import DraftModelDrafter
from specdec_cli.decoding.drafters.ngram import NgramDrafter
from specdec_cli.decoding.policy import FixedDraftLength
from specdec_cli.engine import Engine, FinishEvent, GenerationRequest
from specdec_cli.loader import LoadOptions, choose_executor, load_model
from specdec_cli.sampling.params import SamplingParams

pytestmark = pytest.mark.real

PROMPTS = Path(__file__).resolve().parents[3] / "shared" / "prompts" / "bench.jsonl"
TARGET, DRAFT = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
N_TOKENS = 64


@pytest.fixture(scope="module", params=["torch", "native"])
def load(request, model_path):
    """Load a model of the pair on one executor, each file once."""
    notices = []
    if choose_executor(request.param, notices.append) != request.param:
        pytest.skip(notices[0])
    loaded = {}

    def get(alias):
        if alias not in loaded:
            loaded[alias] = load_model(model_path(alias), LoadOptions(executor=request.param, n_ctx=1024))
        return loaded[alias]

    return get


def prompt_ids(tokenizer, name):
    if not PROMPTS.exists():
        pytest.skip(f"{PROMPTS} not found")
    lines = map(json.loads, PROMPTS.read_text().splitlines())
    (message,) = next(line["messages"] for line in lines if line["id"] == name)
    text = f"<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
    return tuple(tokenizer.encode(text, parse_special=True))


def run(target, drafters, name, *, temperature, n=N_TOKENS, k=4):
    engine = Engine(
        target.model,
        token_bytes=target.tokenizer.token_bytes,
        drafters=drafters,
        policy=FixedDraftLength(k),
        on_notice=pytest.fail,
    )
    request = GenerationRequest(
        prompt_ids(target.tokenizer, name),
        SamplingParams(temperature=temperature, seed=7),
        n,
        eog_ids=target.tokenizer.eog_ids,
    )
    *_, finish = engine.generate(request)
    assert isinstance(finish, FinishEvent)
    assert len(finish.result.token_ids) == n
    return finish.result


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a7_a_model_drafting_for_itself_is_always_accepted(load, temperature):
    model = load(DRAFT)
    drafted = run(model, [DraftModelDrafter(model.model)], "code-lru", temperature=temperature, n=25, k=5)
    assert drafted.stats.draft_acceptance_rate == 1.0
    assert drafted.stats.num_rounds == 4  # 1 token of the prompt pass, then 6 a round
    assert drafted.token_ids == run(model, [], "code-lru", temperature=temperature, n=25).token_ids


@pytest.mark.parametrize(
    ("name", "temperature", "with_lookup"),
    [
        ("code-lru", 0, False),
        ("edit-inventory", 0, True),
        ("chat-coffee", 0, False),
        ("code-lru", 0.8, False),
    ],
)
def test_a2_ids_equal_plain(load, name, temperature, with_lookup):
    target, draft = load(TARGET), load(DRAFT)
    # The torch executor writes 2 tokens/s; toy models cover it in breadth.
    n = N_TOKENS if target.executor == "native" else N_TOKENS // 4
    plain = run(target, [], name, temperature=temperature, n=n)
    drafted = run(target, [DraftModelDrafter(draft.model)], name, temperature=temperature, n=n)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.mean_acceptance_length > 1.5
    if with_lookup:
        looked_up = run(target, [NgramDrafter()], name, temperature=temperature, n=n, k=7)
        assert looked_up.token_ids == plain.token_ids
        assert looked_up.stats.num_accepted_tokens > 0
