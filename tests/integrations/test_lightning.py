"""PlanCallback of Lightning: losses of `o1.train`, checks, resuming and sizes."""

import logging
import warnings

import pytest
import torch
from support.errors import refuses
from support.trainer_workers import STEPS, batch
from test_hf_trainer import plan

import orderone as o1

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside lightning
    import lightning
    from lightning.pytorch.loggers import Logger as BaseLogger

    from orderone.integrations.lightning import PlanCallback

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore")  # lightning warns about workers and loggers


class Model(lightning.LightningModule):
    def __init__(self, made, optimizers=None):
        super().__init__()
        self.inner = made.bound()
        self.optimizers_of = optimizers or made.optimizer
        self.values = []

    def training_step(self, batch, batch_idx):
        loss = self.inner(**batch).loss
        self.values.append(loss.item())
        return loss

    def configure_optimizers(self):
        return self.optimizers_of()


def batches(first=0):
    """Batches in order from `first`; Lightning begins again with the first of a loader."""
    steps = [(first + step) % STEPS for step in range(STEPS)]
    samples = [batch(step) for step in steps]
    return torch.utils.data.DataLoader(samples, batch_size=None)  # type: ignore[arg-type]


class Logger(BaseLogger):
    @property
    def name(self):
        return "sizes"

    @property
    def version(self):
        return 0

    def __init__(self):
        super().__init__()
        self.values = {}

    def log_metrics(self, metrics, step=None):
        self.values[step] = metrics

    def log_hyperparams(self, params, *args, **kwargs): ...


def fit(model, callback, folder=None, ckpt_path=None, logger=None, max_steps=STEPS, first=0):
    trainer = lightning.Trainer(
        max_steps=max_steps,
        gradient_clip_val=1.0,
        accelerator="cpu",
        logger=logger or False,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(model, batches(first), ckpt_path=ckpt_path)
    return trainer


@pytest.fixture(scope="module")
def losses():
    return list(o1.train(plan(), batch, STEPS, clip=1.0, device="cpu").losses)


def test_losses_of_train(losses):
    made = plan()
    model = Model(made)
    logger = Logger()
    callback = PlanCallback(made, every=4, modules="*.mlp", corridor=(0.01, 100.0))
    fit(model, callback, logger=logger)
    assert model.values == pytest.approx(losses, rel=1e-5)
    assert callback.reason is None
    assert list(logger.values) == [1, 5, 9]
    assert set(logger.values[1]) == {"sizes/model.layers.0.mlp", "sizes/model.layers.1.mlp"}


def test_resume_needs_the_same_plan(losses, tmp_path):
    made = plan()
    trainer = fit(Model(made), PlanCallback(made), tmp_path, max_steps=5)
    path = tmp_path / "half.ckpt"
    trainer.save_checkpoint(path)
    made = plan()
    model = Model(made)
    fit(model, PlanCallback(made), tmp_path, ckpt_path=path, first=5)
    assert model.values == pytest.approx(losses[5:], rel=1e-4)
    other = plan(lr=1e-3)
    with refuses("checkpoint-of-other-plan", argument="ckpt_path"):
        fit(Model(other), PlanCallback(other), tmp_path, ckpt_path=path)


def test_a_checkpoint_without_the_callback_has_other_learning_rates(tmp_path):
    """Their ratios are those of the plan, which the check of the optimizer accepts."""
    made = plan()
    made.apply()
    trainer = fit(Model(made), lightning.Callback(), tmp_path, max_steps=5)
    path = tmp_path / "half.ckpt"
    trainer.save_checkpoint(path)
    made = plan()
    fit(Model(made), PlanCallback(made), tmp_path, ckpt_path=path)
    other = plan(lr=1e-3)
    with refuses("checkpoint-of-other-plan", argument="ckpt_path"):
        fit(Model(other), PlanCallback(other), tmp_path, ckpt_path=path)


def test_a_training_stops_with_the_reason():
    made = plan()
    callback = PlanCallback(made, every=1, modules="*.mlp", corridor=(0.9999, 1.0001))
    with pytest.warns(UserWarning, match="sizes-left-corridor"):
        trainer = fit(Model(made), callback)
    assert trainer.global_step == 2
    assert callback.reason is not None


def test_optimizers_that_are_not_the_plans_are_refused():
    made = plan()
    with refuses("broken-ratios", argument="optimizer"):
        fit(Model(made, lambda: torch.optim.AdamW(made.bound().parameters())), PlanCallback(made))

    def with_a_floor():
        optimizer = made.optimizer()
        floor = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=1e-4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": floor, "interval": "step"}}

    with refuses("broken-ratios", argument="scheduler"):
        fit(Model(made, with_a_floor), PlanCallback(made))

    def with_one_peak():
        optimizer = made.optimizer()
        peak = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": peak, "interval": "step"}}

    with refuses("broken-ratios", argument="optimizer") as caught:
        fit(Model(made, with_one_peak), PlanCallback(made))
    assert "Pass a list to OneCycleLR" in str(caught.value)
    with refuses("invalid-argument", argument="plan"):
        fit(Model(made), PlanCallback(plan()))
    with refuses("invalid-argument", argument="every"):
        PlanCallback(made, corridor=(0.1, 10.0))
