"""Group E of the cases, and what lies between."""

import time
from dataclasses import dataclass, field

import pytest

from specdec_cli.errors import PairingError
from specdec_cli.registry.pairing import check_pairing


@dataclass
class Vocab:
    """A tokenizer as far as pairing sees it."""

    tokens: list[str]
    special: dict[int, str] = field(default_factory=dict)  # kinds other than normal
    bos_id: int | None = None
    add_bos: bool = False
    eos_id: int | None = 0

    @property
    def n_vocab(self) -> int:
        return len(self.tokens)

    def token_text(self, token_id: int) -> str:
        return self.tokens[token_id]

    def token_kind(self, token_id: int) -> str:
        return self.special.get(token_id, "normal")


def words(n: int, prefix: str = "w") -> list[str]:
    return [f"{prefix}{i}" for i in range(n)]


def test_equal_vocabularies() -> None:
    report = check_pairing(Vocab(words(300)), Vocab(words(300)))
    assert report.compatible
    assert (report.n_shared, report.blocked, report.num_mismatches) == (300, (), 0)
    assert report.notes == ()
    report.require()


def test_e1_different_families_are_refused_with_sizes_and_first_difference() -> None:
    target = Vocab(["same", *words(999, "t")])
    draft = Vocab(["same", *words(399, "d")])
    report = check_pairing(target, draft)
    assert not report.compatible
    assert report.first_mismatch is not None
    assert report.first_mismatch.token_id == 1
    message = (
        "(1000 tokens in the target, 400 in the draft): id 1 is 't0' in the target and 'd0' in the draft"
    )
    assert report.refusal is not None
    assert message in report.refusal
    with pytest.raises(PairingError, match="id 1 is"):
        report.require()


def test_e1_is_refused_even_when_mismatches_are_allowed() -> None:
    report = check_pairing(Vocab(words(100, "t")), Vocab(words(100, "d")), allow_mismatch=True)
    assert report.refusal is not None
    assert "too many to leave out" in report.refusal


def test_e2_one_text_that_differs_at_a_high_id_is_named() -> None:
    draft = words(5000)
    draft[4990] = "other"
    report = check_pairing(Vocab(words(5000)), Vocab(draft))
    assert report.refusal == (
        "the vocabularies do not match: id 4990 is 'w4990' in the target and 'other' in the draft"
    )


def test_e3_a_draft_that_is_shorter_by_padding_only() -> None:
    target = Vocab([*words(200), "[PAD200]", "[PAD201]"], special={200: "unused", 201: "unused"})
    report = check_pairing(target, Vocab(words(200)))
    assert report.compatible
    assert report.n_shared == 200  # nothing from 200 on is ever drafted
    assert report.blocked == ()
    assert report.notes == ("2 padding ids of the target are beyond the draft's vocabulary",)


def test_e3_a_draft_that_is_longer_by_padding_only() -> None:
    draft = Vocab([*words(200), "[PAD200]"], special={200: "unused"})
    report = check_pairing(Vocab(words(200)), draft)
    assert report.compatible
    assert (report.n_shared, report.draft_n_vocab) == (200, 201)


def test_padding_inside_the_common_part_is_never_drafted() -> None:
    target = Vocab([*words(10), "<unused0>", "x"], special={10: "unused"})
    draft = Vocab([*words(10), "[PAD10]", "y"], special={10: "unused", 11: "unused"})
    report = check_pairing(target, draft)
    assert report.compatible
    assert report.blocked == (10, 11)


def test_a_few_added_tokens_on_one_side_are_left_out() -> None:
    report = check_pairing(Vocab(words(1004)), Vocab(words(1000)))
    assert report.compatible
    assert report.n_shared == 1000
    assert report.notes == ("4 tokens of the target, from id 1000, are beyond the draft's vocabulary",)


def test_many_missing_tokens_are_a_mismatch() -> None:
    report = check_pairing(Vocab(words(1000)), Vocab(words(900)))
    assert report.refusal is not None
    assert "id 900 is 'w900' in the target and absent in the draft; 100 ids differ" in report.refusal
    allowed = check_pairing(Vocab(words(1000)), Vocab(words(900)), allow_mismatch=True)
    assert allowed.compatible
    assert allowed.n_shared == 900


def test_e4_only_effective_settings_count() -> None:
    report = check_pairing(Vocab(words(50), bos_id=1, add_bos=False), Vocab(words(50), bos_id=None))
    assert report.compatible
    assert report.notes == ()


def test_bos_tokens_that_are_really_added_and_differ() -> None:
    report = check_pairing(Vocab(words(50), bos_id=1, add_bos=True), Vocab(words(50), bos_id=2, add_bos=True))
    assert report.refusal == "a text begins with id 1 for the target and id 2 for the draft"
    one_sided = check_pairing(Vocab(words(50), bos_id=1, add_bos=True), Vocab(words(50), bos_id=1))
    assert one_sided.compatible
    assert one_sided.notes == ("only the target begins a text with a BOS token",)


def test_base_and_instruction_tuned_models_may_end_texts_differently() -> None:
    report = check_pairing(Vocab(words(50), eos_id=3), Vocab(words(50), eos_id=4))
    assert report.compatible
    assert report.notes == ("the end of a text is id 3 for the target and id 4 for the draft",)


def test_e5_a_special_token_at_id_139_is_named_and_can_be_masked() -> None:
    target, draft = words(200), words(200)
    target[139], draft[139] = "<|tool|>", "<|fim|>"
    kinds = {139: "control"}
    refused = check_pairing(Vocab(target, kinds), Vocab(draft, kinds))
    assert refused.refusal is not None
    assert "id 139 is '<|tool|>' in the target and '<|fim|>' in the draft" in refused.refusal
    allowed = check_pairing(Vocab(target, kinds), Vocab(draft, kinds), allow_mismatch=True)
    assert allowed.compatible
    assert allowed.blocked == (139,)
    assert allowed.n_shared == 200
    assert allowed.notes[0].startswith("1 ids differ and are never drafted: id 139 is")


def test_e7_a_copy_in_another_order_of_metadata_is_equal() -> None:
    """Metadata order does not reach the vocabulary; lists and single questions give the same answer."""

    class Listed(Vocab):
        @property
        def texts(self) -> list[str]:
            return self.tokens

        @property
        def kinds(self) -> list[str]:
            return [self.token_kind(i) for i in range(self.n_vocab)]

    kinds = {3: "control", 7: "byte"}
    report = check_pairing(Listed(words(30), dict(reversed(kinds.items()))), Vocab(words(30), kinds))
    assert report.compatible
    assert (report.blocked, report.notes) == ((), ())


def test_an_equal_text_of_another_kind_is_not_drafted() -> None:
    report = check_pairing(Vocab(words(50), {9: "control"}), Vocab(words(50), {9: "user_defined"}))
    assert report.compatible
    assert report.blocked == (9,)
    assert "id 9 is 'w9' (control) in the target and 'w9' (user_defined) in the draft" in report.notes[0]


def test_a_byte_is_not_the_text_that_looks_like_it() -> None:
    tokens = ["<0x0A>", *words(20)]
    report = check_pairing(Vocab(tokens, {0: "byte"}), Vocab(tokens))
    assert report.refusal is not None
    assert "id 0 is '<0x0A>' (byte) in the target and '<0x0A>' (normal) in the draft" in report.refusal


def test_control_characters_of_a_hostile_file_are_quoted() -> None:
    report = check_pairing(Vocab(["\x1b[2J\n"]), Vocab(["a"]))
    assert report.refusal is not None
    assert "\x1b" not in report.refusal
    assert "\n" not in report.refusal


def test_json_has_everything() -> None:
    document = check_pairing(Vocab(words(3)), Vocab([*words(2), "x"])).to_json()
    assert document["compatible"] is False
    assert document["first_mismatch"] == {"id": 2, "target": "w2", "draft": "x"}
    assert document["num_mismatches"] == 1


def test_152_thousand_tokens_take_milliseconds() -> None:
    @dataclass
    class Listed(Vocab):
        texts: list[str] = field(default_factory=list)
        kinds: list[str] = field(default_factory=list)

    n = 152_000
    pair = [Listed(words(n), texts=words(n), kinds=["normal"] * n) for _ in range(2)]
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        assert check_pairing(*pair).compatible
        best = min(best, time.perf_counter() - start)
    assert best < 0.05
