"""S1 Figure 2: gradient metrics of linear dropout networks by layer, and the closed form (12).

    g_aa^l = 4 (q*/rho)^2 chi_1^k [rho + sum_{j=1..k} chi_1^j],    chi_1 = sw2/rho,   k = L - l
    g_ab^l = 4 q_ab*^2    chi_2^k [1 + sum_{j=1..k} (sw2/rho^2)^j],    chi_2 = sw2

The paper averages |g_ab| over networks, finds that it differs from (12) and falls as chi_1^k, and
concludes that theory fails. Erratum S1.4: (12) is right for the mean with its sign, and chi_1^k is
the noise floor of |.|: std(g_ab) ~ N^{-1/2} g_aa. Erratum S1.5: where sw2 > rho^2, (12) falls as
chi_1^{2k}, not chi_2^k. Erratum S1.3: (12) needs inputs at the fixed point.
"""

from orderone.gallery.experiment import Experiment
from orderone.gallery.s1.linear_gradient_findings import judge
from orderone.gallery.s1.linear_gradient_pictures import draw
from orderone.gallery.s1.linear_gradients import Settings, parts

EXPERIMENT = Experiment(
    name="s1-figure2",
    title="Gradient metrics of linear networks",
    place="Figure 2, (9) and (12)",
    claim=(
        "A closed form predicts the gradients of one input. For two inputs with dropout it fails,"
        " and g_ab falls by χ₁ per layer."
    ),
    method=(
        "Random linear dropout networks with σ_w² = .5, σ_b² = .1 and inputs at the fixed point,"
        " forward and backward weights shared; the mean of g_ab with its sign is taken over many"
        " more networks than the mean of |g_ab|. Intervals: 99 %, by the jackknife over batches of"
        " networks. The caption has width 1000, the text 500 (erratum S1.8)."
    ),
    scales={
        "small": Settings(500, 200, 96, 46, 1600, (64, 128, 256, 512, 1024), 1600),
        "paper": Settings(1000, 200, 104, 60, 16000, (64, 128, 256, 512, 1024), 16000),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.3", "S1.4", "S1.5", "S1.8"),
)
