"""S1 Figure 1: the maps of lengths and of correlations by one layer, and their fixed points on the
unity line.

    q' = (weight_var / keep) E phi(sqrt(q) z)^2 + bias_var                               S1 (2)
    c' = (weight_var E phi(u_a) phi(u_b) + bias_var) / q*                                S1 (3), (4)
         with lengths at their fixed point q*

The caption has standard deviations: weight_var = sigma_w^2. rho is the keep rate (erratum S1.8).
Panel (c) at rho = .4 has no q*: its lengths grow without bound (erratum S1.2), and its map is that
of normalized signals. Erratum S1.1: without dropout c* is 1 only if chi_1 <= 1; panel (e), which is
not in the paper, has two networks with c* < 1.
"""

from orderone.gallery.experiment import Experiment
from orderone.gallery.s1.signal_map_findings import judge
from orderone.gallery.s1.signal_map_pictures import draw
from orderone.gallery.s1.signal_maps import Settings, parts

EXPERIMENT = Experiment(
    name="s1-figure1",
    title="Length and correlation maps",
    place="Figure 1 and section 3.1",
    claim=(
        "One layer of a wide dropout network maps lengths and correlations as mean field theory"
        " predicts. The fewer units are kept, the longer signals become. Correlations converge to 1"
        " without dropout, and only then."
    ),
    method=(
        "Dots: layers (activation, dropout, Gaussian weights and biases) applied to Gaussian"
        " pre-activations of known length and correlation. Fixed points: last layers of deep"
        " networks with uncorrelated inputs. Theory: `theory.MeanField`."
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
