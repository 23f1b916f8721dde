"""narrowgate.toml: each mistake is named with its place, its value, what is allowed and a hint."""

from __future__ import annotations

import hashlib

import pytest

from narrowgate.errors import ConfigError
from narrowgate.pilot import config

HEAD = '[pilot]\ncandidates = ["bf16"]\n'
QUALITY = '[quality.val_loss]\nbetter = "lower"\nmargin = 0.01\n'
WHOLE = """
[pilot]
baseline = "fp32"
candidates = ["bf16", "bf16(master=params)", "fp16(loss_scale=128)"]
seeds = [3, 1, 2]
timeout_s = 60
data_order = "free"

[quality."val.loss"]
better = "lower"
margin = 0.005
relative = true
owner = "Ada"
[quality."val.loss".slices]
"json/lines" = { margin = 0.01 }
"*" = { margin = 0.02 }

[quality.accuracy]
better = "higher"
margin = 1

[speed]
min_ratio = 1.2
[memory]
max_ratio = 0.8
owner = "Grace"
[stability]
max_skipped_share = 0.02
[cost]
price_per_hour = 2.5
max_ratio = 1.0
"""


@pytest.fixture
def load(tmp_path):
    def write_and_load(text):
        path = tmp_path / "narrowgate.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config.load_config(path)

    return write_and_load


def refused(load, text):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert "narrowgate.toml" in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_whole_file_is_read_as_written(load):
    found = load(WHOLE)
    assert found == config.PilotConfig(
        baseline="fp32",
        candidates=("bf16", "bf16-mixed", "fp16(loss_scale=128)"),
        seeds=(3, 1, 2),
        timeout_s=60.0,
        data_order="free",
        quality=(
            config.QualityLimit(
                name="val.loss",
                better="lower",
                margin=0.005,
                relative=True,
                owner="Ada",
                slices={"json/lines": 0.01, "*": 0.02},
            ),
            config.QualityLimit(
                name="accuracy", better="higher", margin=1.0, relative=False, owner=None, slices={}
            ),
        ),
        speed=config.SpeedLimit(min_ratio=1.2, max_p95_ratio=None, owner=None),
        memory=config.MemoryLimit(max_ratio=0.8, owner="Grace"),
        stability=config.StabilityLimit(max_skipped_share=0.02, owner=None),
        cost=config.CostLimit(max_ratio=1.0, price_per_hour=2.5, owner=None),
    )


def test_a_slice_has_its_own_margin_or_the_stars_or_none(load):
    first, second = load(WHOLE).quality
    assert first.slice_margin("json/lines") == 0.01
    assert first.slice_margin("yaml") == 0.02
    assert second.slice_margin("yaml") is None


def test_defaults_of_a_short_file(load):
    found = load(HEAD + QUALITY)
    assert (found.baseline, found.seeds, found.timeout_s) == ("fp32", (0, 1, 2, 3, 4), 14_400.0)
    assert found.data_order == "same"
    assert (found.speed, found.memory, found.stability, found.cost) == (None,) * 4


def test_the_minimal_file_of_the_hint_works(load, tmp_path):
    with pytest.raises(ConfigError) as caught:
        config.load_config(tmp_path / "absent.toml")
    assert caught.value.message == f"there is no {tmp_path / 'absent.toml'}"
    shown = (caught.value.hint or "").partition("\n\n")[2]
    assert load(shown).candidates == ("bf16",)


MISTAKES = {
    "typo in a margin": (
        HEAD + QUALITY.replace("margin", "marign"),
        ["[quality.val_loss] marign = 0.01: there is no such key; allowed: better, margin, ",
         "[quality.val_loss] margin is missing"],
        "did you mean 'margin'?",
    ),
    "typo in a table": (
        HEAD + QUALITY + "[stabilty]\nmax_skipped_share = 0.1\n",
        ["stabilty = {'max_skipped_share': 0.1}: there is no such table; allowed: pilot, quality"],
        "did you mean 'stability'?",
    ),
    "typo in [pilot]": (
        HEAD + "sedes = 5\n" + QUALITY,
        ["[pilot] sedes = 5: there is no such key; allowed: baseline, candidates, seeds"],
        "did you mean 'seeds'?",
    ),
    "typo in a slice": (
        HEAD + QUALITY + "[quality.val_loss.slices.a]\nmargn = 1\nmargin = 1\n",
        ["[quality.val_loss.slices.a] margn = 1: there is no such key; allowed: margin"],
        "did you mean 'margin'?",
    ),
    "no margin": (
        HEAD + '[quality.x]\nbetter = "lower"\n',
        ["[quality.x] margin is missing"],
        "margin is how much worse than the baseline the mean may be",
    ),
    "negative margin": (
        HEAD + QUALITY.replace("0.01", "-0.01"),
        ["[quality.val_loss] margin = -0.01: it must be greater than 0"],
        "margin is how much worse",
    ),
    "zero margin": (HEAD + QUALITY.replace("0.01", "0.0"), ["greater than 0"], ""),
    "minus zero margin": (HEAD + QUALITY.replace("0.01", "-0.0"), ["greater than 0"], ""),
    "NaN margin": (
        HEAD + QUALITY.replace("0.01", "nan"), ["margin = nan: it must be a finite number"], ""
    ),
    "infinite margin": (
        HEAD + QUALITY.replace("0.01", "inf"), ["margin = inf: it must be a finite number"], ""
    ),
    "huge margin": (
        HEAD + QUALITY.replace("0.01", "1" + "0" * 400), ["[quality.val_loss] margin = "], ""
    ),
    "margin as text": (
        HEAD + QUALITY.replace("0.01", '"0.01"'),
        ["margin = '0.01': it must be a valid number"], "",
    ),
    "margin as truth": (
        HEAD + QUALITY.replace("0.01", "true"), ["margin = True: it must be a valid number"], ""
    ),
    "neither lower nor higher": (
        HEAD + QUALITY.replace('"lower"', '"less"'),
        ["[quality.val_loss] better = 'less': it must be 'lower' or 'higher'"], "better is which",
    ),
    "no better": (HEAD + "[quality.x]\nmargin = 1\n", ["[quality.x] better is missing"], ""),
    "no quality": (HEAD, ["quality is missing"], "quality is a table [quality.NAME]"),
    "empty quality": (HEAD + "[quality]\n", ["quality = {}: it must not be empty"], ""),
    "quality is no table": ("quality = 3\n" + HEAD, ["quality = 3: it must be a table"], ""),
    "metric is no table": (
        HEAD + "[quality]\nval_loss = 0.1\n", ["[quality] val_loss = 0.1: it must be a table"], ""
    ),
    "no pilot": (QUALITY, ["pilot is missing"], "pilot is the table [pilot]"),
    "no candidates": (
        "[pilot]\ncandidates = []\n" + QUALITY,
        ["[pilot] candidates = []: it must not be empty"], "candidates is",
    ),
    "zero seeds": (
        HEAD + "seeds = 0\n" + QUALITY, ["[pilot] seeds = 0; allowed: 1 to 1,000"], "five seeds"
    ),
    "very many seeds": (
        HEAD + f"seeds = {10**9}\n" + QUALITY, ["[pilot] seeds = 1000000000; allowed: 1 to"], ""
    ),
    "digits without end": (HEAD + f"seeds = {'9' * 5000}\n" + QUALITY, ["narrowgate.toml"], ""),
    "no seed in the list": (HEAD + "seeds = []\n" + QUALITY, ["[pilot] seeds = []; allowed:"], ""),
    "half a seed": (HEAD + "seeds = 2.5\n" + QUALITY, ["[pilot] seeds = 2.5; allowed: a "], ""),
    "seeds as truth": (HEAD + "seeds = true\n" + QUALITY, ["[pilot] seeds = True; allowed"], ""),
    "a negative seed": (
        HEAD + "seeds = [1, -1]\n" + QUALITY, ["[pilot] seeds has -1; allowed: whole numbers"], ""
    ),
    "a seed as truth": (HEAD + "seeds = [true]\n" + QUALITY, ["[pilot] seeds has True"], ""),
    "a seed twice": (HEAD + "seeds = [4, 4]\n" + QUALITY, ["seeds names 4 2 times"], ""),
    "unknown recipe": (
        HEAD.replace("bf16", "bf61") + QUALITY,
        ["[pilot] candidate 1: there is no recipe 'bf61'"], "did you mean 'bf16'?",
    ),
    "unknown baseline": (
        HEAD + 'baseline = "f32"\n' + QUALITY, ["[pilot] baseline: there is no recipe 'f32'"], ""
    ),
    "quotes in a recipe": (
        "[pilot]\ncandidates = ['bf16\"']\n" + QUALITY, ["[pilot] candidate 1: "], ""
    ),
    "a candidate twice in two spellings": (
        '[pilot]\ncandidates = ["bf16-mixed", "bf16(master=params)"]\n' + QUALITY,
        ["'bf16(master=params)' is the same recipe as candidate 1, 'bf16-mixed'"], "once",
    ),
    "the baseline as a candidate": (
        HEAD.replace("bf16", "fp32") + QUALITY, ["is the same recipe as the baseline, 'fp32'"], ""
    ),
    "zero time": (HEAD + "timeout_s = 0\n" + QUALITY, ["timeout_s = 0: it must be greater"], ""),
    "another data order": (
        HEAD + 'data_order = "any"\n' + QUALITY, ["it must be 'same' or 'free'"], "data_order is"
    ),
    "speed without a limit": (
        HEAD + QUALITY + '[speed]\nowner = "Ada"\n', ["[speed] sets no limit"], "min_ratio"
    ),
    "share above one": (
        HEAD + QUALITY + "[stability]\nmax_skipped_share = 2\n", ["it must be less than or equal"],
        "",
    ),
    "empty owner": (
        HEAD + QUALITY + 'owner = ""\n',
        ["[quality.val_loss] owner = '': it must not be empty"], "owner is the person",
    ),
    "a metric that cannot be printed": (
        HEAD + QUALITY.replace("val_loss", '"a\\nb"'), ["the name 'a\\nb' cannot be printed"], ""
    ),
    "an empty slice name": (
        HEAD + QUALITY + '[quality.val_loss.slices.""]\nmargin = 1\n', ["cannot be printed"], ""
    ),
    "a slash in a metric": (
        HEAD + QUALITY.replace("val_loss", '"val/loss"'),
        ["[quality]: the metric's name 'val/loss' has a slash"], "report it as 'val_loss'",
    ),
    "not TOML": (HEAD + "seeds = \n", ["is no TOML: ", "line 3"], "quotes"),
    "a key twice": (HEAD + "seeds = 1\nseeds = 2\n", ["is no TOML: ", "line 4"], ""),
    "not UTF-8": (b"[pilot]\n# \xe9\n", ["is not UTF-8: byte 10 is 0xe9"], "UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_the_way_out(name, load):
    text, told, hint = MISTAKES[name]
    error = refused(load, text)
    for part in told:
        assert part in error.message
    assert hint in (error.hint or "")
    assert len(error.message) < 600


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        config.load_config(tmp_path)


def test_names_with_dots_quotes_and_other_scripts_are_kept(load):
    name = '損失 val.loss "q" <b>'
    quoted = name.replace('"', '\\"')
    found = load(HEAD + f'[quality."{quoted}"]\nbetter = "lower"\nmargin = 1e-300\n')
    assert found.quality[0].name == name
    assert found.quality[0].margin == 1e-300


def test_a_byte_order_mark_is_read_over_and_hashed(load, tmp_path):
    """Some editors begin every file with one, and nobody sees it."""
    text = f"\ufeff{WHOLE}".encode()
    assert load(text) == load(WHOLE)
    load(text)
    assert config.config_hash(tmp_path / "narrowgate.toml") == hashlib.sha256(text).hexdigest()
    refused(load, f"\ufeff\ufeff{WHOLE}".encode())
