from __future__ import annotations

import pytest

from narrowgate.records.masking import MASK, mask_command

HTTPS = "https:" + "//"  # in halves: no file here names a host


@pytest.mark.parametrize(
    ("command", "masked"),
    [
        (["--token", "abc"], ["--token", MASK]),
        (["--hub-token=abc"], [f"--hub-token={MASK}"]),
        (["--api_key", "abc", "--lr", "3"], ["--api_key", MASK, "--lr", "3"]),
        (["-key", "abc"], ["-key", MASK]),
        (["HF_TOKEN=abc"], [f"HF_TOKEN={MASK}"]),
        (["authToken=abc"], [f"authToken={MASK}"]),
        (["hub.secret:abc"], [f"hub.secret:{MASK}"]),
        (["--password", "two words"], ["--password", MASK]),
        (["--api-keys", "abc"], ["--api-keys", MASK]),
        (["--hftoken", "abc"], ["--hftoken", MASK]),
        (["--credentials=abc"], [f"--credentials={MASK}"]),
        (["--auth", "Bearer abc"], ["--auth", MASK]),
        (["curl", "Authorization: Bearer abc"], ["curl", f"Authorization: {MASK} {MASK}"]),
        (["X-Header: Basic abc"], [f"X-Header: Basic {MASK}"]),
        (["--pwd", "abc", "--passphrase", "abc"], ["--pwd", MASK, "--passphrase", MASK]),
        (["--passwd", "-starts-with-a-dash"], ["--passwd", MASK]),
        ([f"{HTTPS}user:abc@host/x"], [f"{HTTPS}user:{MASK}@host/x"]),
        (
            ["bash", "-c", "A_TOKEN='a b' python t.py --api-key abc --lr 3"],
            ["bash", "-c", f"A_TOKEN={MASK} python t.py --api-key {MASK} --lr 3"],
        ),
        (
            ['{"password": "abc", "lr": 3}'],
            [f'{{"password": {MASK}, "lr": 3}}'],
        ),
    ],
)
def test_secrets_are_masked(command: list[str], masked: list[str]) -> None:
    assert list(mask_command(command)) == masked


@pytest.mark.parametrize(
    "command",
    [
        ["python", "train.py", "--seed", "{seed}"],
        ["--tokenizer", "gpt2", "--max-tokens", "128", "--num_tokens=9"],
        ["--monkey", "see", "turkey=7", "--author", "me", "--basic", "--bearer"],
        ["--token"],
        ["--token", "--lr", "3"],
        [f"{HTTPS}host:8080/x", "a@b"],
        [""],
        [],
    ],
)
def test_the_rest_is_left_alone(command: list[str]) -> None:
    assert list(mask_command(command)) == command


def test_masking_a_masked_command_changes_nothing() -> None:
    once = mask_command(["--token", "abc", "A_KEY=b", "bash", "-c", "SECRET=x y"])
    assert mask_command(once) == once
