"""Recipes: published compositions of methods and hyper-parameters, for the benchmark's configs and for any model."""

from timedrun.recipes.own_model import PLAIN_LOOP, Training, recipe
from timedrun.recipes.published import RECIPES, budget_problem
from timedrun.recipes.recipe import Recipe

__all__ = ["PLAIN_LOOP", "RECIPES", "Recipe", "Training", "budget_problem", "recipe"]
