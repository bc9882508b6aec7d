"""S1 Figure 1: one layer's map of lengths and of correlations, and the fixed points where it meets
the unity line.

    q' = (weight_var / keep) E phi(sqrt(q) z)^2 + bias_var                               S1 (2)
    c' = (weight_var E phi(u_a) phi(u_b) + bias_var) / q*                                S1 (3), (4)
         with lengths at their fixed point q*

The caption gives deviations: weight_var = sigma_w^2, and rho is the keep rate (erratum S1.8). Panel
(c) at rho = .4 has no q*: its lengths grow for ever (erratum S1.2), and its map is that of
normalised signals. Erratum S1.1: without dropout c* is 1 only if chi_1 <= 1; panel (e), which is
not in the paper, shows two networks where it is not.
"""

from orderone.gallery.experiment import Experiment
from orderone.gallery.s1.signal_map_findings import judge
from orderone.gallery.s1.signal_map_pictures import draw
from orderone.gallery.s1.signal_maps import Settings, parts

EXPERIMENT = Experiment(
    name="s1-figure1",
    title="Length and correlation maps",
    claim=(
        "One layer of a wide dropout network maps lengths and correlations as mean field theory"
        " says; the fewer units are kept, the longer signals become; correlations come to 1 without"
        " dropout, and only then."
    ),
    method=(
        "Dots: real layers (activation, dropout, Gaussian weights and biases) on Gaussian"
        " pre-activations of given length and correlation. Fixed points: last layers of deep"
        " networks with unrelated inputs. Theory: `theory.MeanField`."
    ),
    scales={
        "small": Settings(width=1000, networks=48, points=11, depth=100, batches=8),
        "paper": Settings(width=1000, networks=200, points=21, depth=200, batches=8),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.1", "S1.2", "S1.8"),
)
