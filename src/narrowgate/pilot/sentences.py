"""How a verdict's reasons say numbers: short, and never so short that two of them look equal."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["and_more", "apart", "confidence", "named", "shown"]

_MOST_NAMED = 6


def shown(value: float) -> str:
    """Write a number with four significant digits.

    Args:
        value: The number.

    Example:
        >>> shown(0.0123456), shown(-0.0), shown(float("nan"))
        ('0.01235', '0', 'nan')
    """
    return f"{value + 0.0:.4g}"


def apart(*values: float) -> tuple[str, ...]:
    """Write numbers with as many digits as it takes to see them differ.

    Args:
        values: The numbers.

    Example:
        >>> apart(0.01, 0.0100000123)
        ('0.01', '0.01000001')
    """
    for digits in range(4, 18):
        written = tuple(f"{value + 0.0:.{digits}g}" for value in values)
        if len(set(written)) == len(set(values)):
            break
    return written


def confidence(alpha: float) -> str:
    """Write the confidence of a one-sided bound.

    Args:
        alpha: Its risk.

    Example:
        >>> confidence(0.025), confidence(0.05 / 2**12)
        ('97.5 %', '99.99878 %')
    """
    return f"{100.0 * (1.0 - alpha):.7g} %"


def named(seeds: Sequence[int]) -> str:
    """Name seeds.

    Args:
        seeds: The seeds.

    Example:
        >>> named([3]), named([1, 2, 3])
        ('seed 3', 'seeds 1, 2, 3')
    """
    return f"seed{'' if len(seeds) == 1 else 's'} " + and_more([str(seed) for seed in seeds], ", ")


def and_more(words: Sequence[str], separator: str = "; ") -> str:
    """Join the first few words, and count the rest.

    Args:
        words: The words.
        separator: What stands between them.
    """
    more = len(words) - _MOST_NAMED
    head = separator.join(words[:_MOST_NAMED])
    return f"{head} and {more} more" if more > 0 else head
