"""What is wanted: recipes, descriptions of models, the plan that joins the two. No torch here."""

from narrowgate.plan.model import ModelInfo, ModuleInfo, Owner, ParamInfo
from narrowgate.plan.recipe import ALIASES, BASES, KEYS, Entry, LossScale, Recipe, Rule, parse
from narrowgate.plan.resolve import NARROWED, resolve
from narrowgate.plan.table import ModuleRow, ParamRow, Plan, diff

__all__ = [
    "ALIASES",
    "BASES",
    "KEYS",
    "NARROWED",
    "Entry",
    "LossScale",
    "ModelInfo",
    "ModuleInfo",
    "ModuleRow",
    "Owner",
    "ParamInfo",
    "ParamRow",
    "Plan",
    "Recipe",
    "Rule",
    "diff",
    "parse",
    "resolve",
]
