"""Settings of data that would do nothing although they are asked for, told before a run names them in its config."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from image_classification.loaders import registry
from image_classification.stores.manifest import StoreConfig
from timedrun.config import RunConfig
from timedrun.methods import ProgressiveResizing

if TYPE_CHECKING:
    from image_classification.datasets import DataConfig  # whose preflight asks here

STORED_ONLY = ("eval_resize", "loader", "workers", "prefetch", "read_ahead")
MEMORY_ONLY = ("padding", "flip")
RESIDENT_SIZES = {"digits": 8, "cifar10": 32}
SYNTHETIC_ONLY = ("synthetic_train", "synthetic_eval", "synthetic_classes")


def idle_settings(data: DataConfig) -> list[str]:
    """Settings that are not at their default and do nothing for this source, and what to set them back to; and numbers
    that can mean nothing. Noise takes the place of any source, so it may have the settings of all."""
    usual = {field.name: field.default for field in fields(data)}
    idle: list[str] = []
    if data.source != "synthetic":
        idle = [*SYNTHETIC_ONLY, *(MEMORY_ONLY if data.source == "image_folder" else STORED_ONLY)]
    if data.order == "random":
        idle += ["order_block", "order_window"]
    set_though = [(name, usual[name]) for name in idle if getattr(data, name) != usual[name]]
    store, plain = data.store, StoreConfig()
    read = ("format", *registry.SETTINGS[store.format]) if data.source == "image_folder" else ()
    # The eval_resize that a run takes is one of them; the others are there for other runs.
    others = [item.name for item in fields(StoreConfig) if item.name not in (*read, "evaluation_resizes")]
    others = [] if data.source == "synthetic" else others
    set_though += [
        (f"store.{name}", getattr(plain, name)) for name in others if getattr(store, name) != getattr(plain, name)
    ]
    found = []
    if set_though:
        where = data.source if data.source != "image_folder" else f"image_folder, format {store.format}"
        names = ", ".join(f"data.{name} (leave it at {default!r})" for name, default in set_though)
        found.append(f"set, but without effect for {where} and order {data.order}: {names}.")
    own = RESIDENT_SIZES.get(data.source)
    if own and not data.train_size == data.eval_size == own:
        found.append(f"{data.source} has images of {own} px: data.train_size and data.eval_size must say so.")
    if data.order_block < 1 or data.order_window < 1:
        found.append("data.order_block and data.order_window count from 1.")
    if data.eval_batch < 1:
        found.append(f"data.eval_batch {data.eval_batch}: give --data.eval-batch 1 or more.")
    if data.prefetch < 0 or data.workers < 0:
        found.append("data.prefetch and data.workers count from 0.")
    return found


def loader_methods(config: RunConfig) -> list[str]:
    """Methods that ask a loader for smaller images, where images are held in memory as they are."""
    return [
        f"progressive_resizing.where loader: images of source {config.data.source} are held in memory and not loaded;"  # type: ignore[attr-defined]
        " use --methods.progressive-resizing.where batch."
        for method in config.methods
        if isinstance(method, ProgressiveResizing) and method.where == "loader"
    ]
