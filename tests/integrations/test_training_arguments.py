"""Arguments of the Trainer leave the groups of the plan in force, or are refused."""

from functools import partial
from typing import Any

import pytest
import torch
from support import planned_models
from support.errors import refuses
from support.trainer_workers import IDS, LABELS, ROWS, STEPS, Losses, Rows, batch
from torch.optim import SGD, AdamW
from transformers import TrainingArguments
from transformers.trainer_callback import PrinterCallback

import orderone as o1
from orderone.integrations.huggingface import PLAN_FILE, PlanTrainer
from orderone.planning import Plan


def plan(**options: Any) -> Plan:
    settings = {"lr": 3e-3, "weight_decay": 0.1, **options}
    return o1.plan(planned_models.model("llama"), base=planned_models.BASE, **settings)


class Lengths(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of a data set with the lengths by which the Trainer groups them."""

    def __len__(self):
        return len(IDS)

    def __getitem__(self, index):
        return {"input_ids": IDS[index], "labels": LABELS[index], "length": len(IDS[index])}


def made(folder, of, arguments, trainer_class=PlanTrainer, **options):
    settings: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": ROWS,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "lr_scheduler_type": "constant",
    }
    args = TrainingArguments(str(folder), **(settings | arguments))
    return trainer_class(plan=of, args=args, eval_dataset=Lengths(), **options)


MUON = {"optimizer": "muon", "lr": {"muon": 2e-2, "adamw": 3e-3}}
BETAS = partial(AdamW, betas=(0.9, 0.95))
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "learning rate": ({}, {"learning_rate": 1e-4}),
    "weight decay": ({}, {"weight_decay": 0.3}),
    "eps": ({}, {"adam_epsilon": 1e-3}),
    "another optimizer": ({}, {"optim": "adafactor"}),
    "adamw beside muon": (MUON, {"optim": "adamw_torch"}),
    "a class of the user": ({"optimizer": type("Own", (AdamW,), {})}, {"optim": "adamw_torch"}),
    "options of an optimizer": ({}, {"optim_args": "amsgrad=True"}),
    "tensors of an optimizer": ({}, {"optim_target_modules": "all-linear"}),
    "betas beside those of the plan": ({"optimizer": BETAS}, {"adam_beta2": 0.99}),
    "betas of another optimizer": (MUON, {"adam_beta2": 0.95}),
    "a batch that is found": ({"batch": (2, ROWS)}, {"auto_find_batch_size": True}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_the_plan_is_refused(case, tmp_path):
    options, arguments = REFUSED[case]
    with refuses("setting-of-the-plan", argument="args"):
        made(tmp_path, plan(**options), arguments)


AGREEING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "learning rate": ({}, {"learning_rate": 3e-3, "weight_decay": 0.1}),
    "eps": ({"eps": 1e-6}, {"adam_epsilon": 1e-6}),
    "optimizer": ({}, {"optim": "adamw_torch"}),
    "an optimizer with options": ({"optimizer": BETAS}, {"optim": "adamw_torch"}),
    "another optimizer": ({"optimizer": "sgd"}, {"optim": "sgd"}),
    "betas": ({"optimizer": BETAS}, {"adam_beta2": 0.95}),
}


@pytest.mark.parametrize("case", AGREEING)
def test_what_agrees_with_the_plan_is_accepted(case, tmp_path):
    options, arguments = AGREEING[case]
    assert made(tmp_path, plan(**options), arguments).create_optimizer()


def test_what_would_replace_the_plan_is_refused(tmp_path):
    options = {
        "optimizers": (SGD([torch.nn.Parameter(torch.zeros(1))]), None),
        "optimizer_cls_and_kwargs": (SGD, {"lr": 0.1}),
        "model_init": lambda: planned_models.model("llama"),
    }
    for argument, value in options.items():
        with refuses("invalid-argument", argument=argument):
            made(tmp_path, plan(), {}, **{argument: value})
    unrelated = SGD([torch.nn.Parameter(torch.zeros(1))])
    scheduler = torch.optim.lr_scheduler.ConstantLR(unrelated)
    with refuses("invalid-argument", argument="optimizers"):
        made(tmp_path, plan(), {}, optimizers=(None, scheduler))


def test_betas_of_the_arguments_are_those_of_the_optimizer(tmp_path):
    optimizer = made(tmp_path, plan(), {"adam_beta2": 0.95}).create_optimizer()
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}


def test_betas_that_the_plan_scales(tmp_path):
    """The default betas of the arguments do not contradict them."""
    scaled = plan(batch=(1, 4))
    optimizer = made(tmp_path, scaled, {}).create_optimizer()
    assert {group["betas"] for group in optimizer.param_groups} == {scaled.rows[0].betas}
    with refuses("setting-of-the-plan"):
        made(tmp_path, scaled, {"adam_beta2": 0.95}).create_optimizer()


class RunsOutOfMemory(PlanTrainer):
    fails = True

    def training_step(self, *args, **options):
        if self.fails and self.state.global_step == 2:
            self.fails = False
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(*args, **options)


IN_FORCE: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "optim": {"optim": "adamw_torch_fused"},
    "max_grad_norm": {"max_grad_norm": 0.5},
    "load_best_model_at_end": {
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 5,
        "save_steps": 5,
    },
    "auto_find_batch_size": {"auto_find_batch_size": True},
    "train_sampling_strategy": {"train_sampling_strategy": "group_by_length"},
    "neftune_noise_alpha": {"neftune_noise_alpha": 5.0},
    "label_smoothing_factor": {"label_smoothing_factor": 0.1},
}


@pytest.mark.parametrize("case", IN_FORCE)
@pytest.mark.filterwarnings("ignore")  # of torch.compile and checkpointing
def test_every_tensor_trains_with_its_settings(case, tmp_path):
    kind: Any = RunsOutOfMemory if case == "auto_find_batch_size" else PlanTrainer
    planned = plan()
    data: Any = Lengths() if case == "train_sampling_strategy" else Rows()
    trainer = made(tmp_path, planned, IN_FORCE[case], kind, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    optimizer: Any = trainer.optimizer
    planned.check(optimizer.optimizer)
    assert {group["lr"] for group in optimizer.param_groups} == {row.lr for row in planned.rows}
    assert not getattr(trainer, "fails", False)


SAME_LOSSES: dict[str, dict[str, Any]] = {
    "torch_compile": {"torch_compile": True, "torch_compile_backend": "eager"},
    "gradient_accumulation_steps": {
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": ROWS // 2,
    },
    "gradient_checkpointing": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize("case", SAME_LOSSES)
@pytest.mark.filterwarnings("ignore")  # of torch.compile and checkpointing
def test_ways_of_computing_have_the_same_losses(case, tmp_path):
    losses = Losses()
    arguments = SAME_LOSSES[case] | {"logging_steps": 1}
    trainer = made(tmp_path, plan(), arguments, train_dataset=Rows(), callbacks=[losses])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    ours = o1.train(plan(), batch, STEPS, clip=1.0, device="cpu")
    assert losses.values == pytest.approx(list(ours.losses), rel=1e-6)


def test_a_saved_model_has_the_plan_beside_it(tmp_path):
    """Also those that the Trainer saves without its callbacks, at a signal."""
    planned = plan()
    trainer = made(tmp_path, planned, {})
    trainer.save_model(str(tmp_path / "model"))
    assert Plan.load(tmp_path / "model" / PLAN_FILE).rows == planned.rows
    trainer.create_optimizer_and_scheduler(STEPS)
    assert isinstance(trainer.model, torch.nn.Module)
    trainer._save_checkpoint(trainer.model, trial=None)
    assert (tmp_path / "checkpoint-0" / PLAN_FILE).exists()
