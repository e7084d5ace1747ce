"""Recipes: published compositions of methods and hyper-parameters, for the benchmark's configs and for any model."""

from timedrun.methods.recipes.language_models import LANGUAGE_RECIPES
from timedrun.methods.recipes.own_model import PLAIN_LOOP, Training, recipe
from timedrun.methods.recipes.published import RECIPES, Recipe, budget_problem

__all__ = ["LANGUAGE_RECIPES", "PLAIN_LOOP", "RECIPES", "Recipe", "Training", "budget_problem", "recipe"]
