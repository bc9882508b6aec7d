"""Trainings of one Llama by other trainers in two processes; spawn imports this file.

Accelerate and Transformers use FSDP on accelerators only: `AcceleratorState` reads the plugin in
the branch of MULTI_GPU and its like. `Sharded` sets what that branch sets. The rest is their code.
"""

import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

import orderone as o1
from orderone.integrations.huggingface import PlanTrainer, SizesCallback
from orderone.measure.size_monitor import SizeMonitor
from support import planned_models

PROCESSES, STEPS, ROWS, EVERY = 2, 10, 4, 4
LAYER = "LlamaDecoderLayer"
IDS = torch.randint(64, (STEPS * ROWS, 16), generator=torch.Generator().manual_seed(1))
LABELS = IDS.clone()
LABELS[:, 0] = -100  # Trainer divides by the number of labels; no position predicts the first token


class Rows(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (
            {"input_ids": row, "labels": labels} for row, labels in zip(IDS, LABELS, strict=True)
        )


def batch(step: int, seed: int = 0) -> dict[str, Tensor]:
    rows = slice(ROWS * step, ROWS * (step + 1))
    return {"input_ids": IDS[rows], "labels": LABELS[rows]}


def plan() -> o1.Plan:
    return o1.plan(
        planned_models.model("llama"), base=planned_models.BASE, lr=3e-3, weight_decay=0.1
    )


# --- Trainer --------------------------------------------------------------------------------------


class Losses(TrainerCallback):
    def __init__(self):
        self.values: list[float] = []
        self.sizes: list[dict[str, float]] = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        logs = logs or {}
        if "loss" in logs:
            self.values.append(logs["loss"])
        if any(name.startswith("sizes/") for name in logs):
            self.sizes.append(dict(logs))


def use_fsdp(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin) -> None:
    AcceleratorState._shared_state["distributed_type"] = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin


class Sharded(PlanTrainer):
    def create_accelerator_and_postprocess(self):
        super().create_accelerator_and_postprocess()
        options: Any = self.args.fsdp_plugin_args
        use_fsdp(self.accelerator, FullyShardedDataParallelPlugin(**options))
        self.is_fsdp_enabled = True


def trainer(trainer_class: type[PlanTrainer], **options: Any) -> dict[str, Any]:
    losses = Losses()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=STEPS,
            per_device_train_batch_size=ROWS // PROCESSES,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            lr_scheduler_type="constant",
            **options,
        )
        made = trainer_class(
            plan=plan(),
            args=arguments,
            train_dataset=Rows(),
            callbacks=[SizesCallback(every=EVERY, modules="*.mlp"), losses],
        )
        made.remove_callback(PrinterCallback)
        made.train()
    optimizer: Any = made.optimizer
    kinds = {type(p).__name__ for group in optimizer.param_groups for p in group["params"]}
    return {"losses": losses.values, "kinds": kinds, "sizes": losses.sizes}


# --- Accelerate and plain loops -------------------------------------------------------------------


def train(model: Any, optimizer: Any, accelerator: Any = None, whole: bool = False) -> list[float]:
    """Train on this process's rows, or on whole batches; return losses of all processes."""
    rank = dist.get_rank()
    values: list[float] = []
    for step in range(STEPS):
        rows = batch(step)
        if not whole:
            rows = {name: x.chunk(PROCESSES)[rank] for name, x in rows.items()}
        loss = model(**rows).loss
        if accelerator is None:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        else:
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        values.append(total.item() / PROCESSES)
    return values


def accelerate(sharded: bool) -> dict[str, Any]:
    made = plan()
    made.apply()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[LAYER],
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin if sharded else None)
    chosen = str(accelerator.distributed_type)
    if sharded:
        use_fsdp(accelerator, plugin)
    model, optimizer = accelerator.prepare(made.bound(), made.optimizer())
    return {"losses": train(model, optimizer, accelerator), "chosen": chosen}


def fully_sharded() -> dict[str, Any]:
    made = plan()
    model: Any = made.apply()
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    arguments = TrainingArguments(tempfile.mkdtemp(), use_cpu=True, report_to="none")
    optimizer = PlanTrainer(plan=made, args=arguments).create_optimizer(model)
    assert all(isinstance(p, DTensor) for p in optimizer.param_groups[0]["params"])
    with SizeMonitor(model, optimizer, plan=made, every=EVERY, quantity="weight") as monitor:
        losses = train(model, optimizer)
        monitor.read()
    return {"losses": losses, "sizes": [(s.step, s.name, s.rms) for s in monitor.sizes]}


def tensor_parallel() -> dict[str, Any]:
    made = plan()
    model: Any = made.apply()
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for layer in model.model.layers:
        styles = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel()}
        parallelize_module(layer.mlp, mesh, {**styles, "down_proj": RowwiseParallel()})
    optimizer = made.optimizer(foreach=False)
    names = ["*.mlp", "*.up_proj"]
    with SizeMonitor(model, optimizer, plan=made, every=EVERY, modules=names) as monitor:
        losses = train_unclipped(model, optimizer)
        monitor.read()
    return {"losses": losses, "sizes": [(s.step, s.name, s.rms) for s in monitor.sizes]}


def train_unclipped(model: Any, optimizer: Any) -> list[float]:
    """Norms over plain and distributed tensors together cannot be clipped."""
    values: list[float] = []
    for step in range(STEPS):
        loss = model(**batch(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.item())
    return values


# --- Lightning ------------------------------------------------------------------------------------


def lightning_ddp() -> dict[str, Any]:
    """Train with Lightning's DDP; every process reads its part of each batch."""
    import lightning

    from orderone.integrations.lightning import PlanCallback

    made = plan()
    rank = dist.get_rank()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner: Any = made.bound()
            self.values: list[float] = []

        def training_step(self, batch, batch_idx):
            loss = self.inner(**batch).loss
            total = loss.detach().clone()
            dist.all_reduce(total)
            self.values.append(total.item() / PROCESSES)
            return loss

        def configure_optimizers(self):
            return made.optimizer()

    parts: list[dict[str, Tensor]] = []
    for step in range(STEPS):
        parts.append({name: x.chunk(PROCESSES)[rank] for name, x in batch(step).items()})
    module = Module()
    fitted = lightning.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=PROCESSES,
        max_steps=STEPS,
        gradient_clip_val=1.0,
        use_distributed_sampler=False,
        callbacks=[PlanCallback(made, every=EVERY)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader: Any = torch.utils.data.DataLoader(parts, batch_size=None)  # type: ignore[arg-type]
    fitted.fit(module, loader)
    return {"losses": module.values, "kind": type(fitted.strategy).__name__}


JOBS: dict[str, Callable[[], dict[str, Any]]] = {
    "trainer, ddp": lambda: trainer(PlanTrainer),
    "trainer, fsdp2": lambda: trainer(
        Sharded, fsdp=True, fsdp_config={"transformer_layer_cls_to_wrap": [LAYER]}
    ),
    "accelerate, ddp": lambda: accelerate(sharded=False),
    "accelerate, fsdp2": lambda: accelerate(sharded=True),
    "fully_shard": fully_sharded,
    "tensor parallel": tensor_parallel,
    "lightning, ddp": lightning_ddp,
}


def process(rank: int, folder: str, port: int) -> None:
    """Run all jobs; a failed job returns its error."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "TORCHELASTIC_RUN_ID": "trainers",  # Lightning asks for it to find torchrun
    }
    results: dict[str, Any] = {}
    for name, job in JOBS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch and accelerate, about gloo and CPU meshes
            try:
                results[name] = job()
            except Exception:
                results[name] = traceback.format_exc()
            AcceleratorState._reset_state()
    if rank == 0:
        torch.save(results, Path(folder) / "results.pt")
    dist.barrier()
    os._exit(0)  # on a busy machine, threads of gloo that are not over yet would abort the process
