"""Papers behind the library: S0 to S3, on which it is built, and the sources of single parts.

The year is that of the first preprint unless another one is listed. Facts that are not certain are
left out.
"""

from orderone.core.citations.citation import Citation
from orderone.core.version import VERSION

ORDERONE = Citation(
    "orderone",
    "orderone: muP for any PyTorch model",
    ("The orderone developers",),
    version=VERSION,
)
S0 = Citation("stratos", "Scale-Invariant Parameterizations", ("Karl Stratos",))
S1 = Citation(
    "huang2020mean",
    "Mean field theory for deep dropout networks: digging up gradient backpropagation deeply",
    ("Wei Huang", "Richard Yi Da Xu", "Weitao Du", "Yutian Zeng", "Yunce Zhao"),
    year=2020,
    arxiv="1912.09132",
    published="ECAI 2020, pages 1215-1222",
)
S2 = Citation(
    "dinan2023effective",
    "Effective Theory of Transformers at Initialization",
    ("Emily Dinan", "Sho Yaida", "Susan Zhang"),
    arxiv="2304.02034",
)
S3 = Citation(
    "li2023differential",
    "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks",
    ("Mufan Bill Li", "Mihai Nica"),
    arxiv="2310.12079",
    published="Transactions on Machine Learning Research, openreview.net/forum?id=iRDwUXYsSJ",
)
_MORE = (
    # parameterizations
    (
        "everett2024scaling",
        "2407.05872",
        "Scaling Exponents Across Parameterizations and Optimizers",
        (
            "Katie Everett, Lechao Xiao, Mitchell Wortsman, Alexander A. Alemi, Roman Novak, Peter"
            " J. Liu, Izzeddin Gur, Jascha Sohl-Dickstein, Leslie Pack Kaelbling, Jaehoon Lee,"
            " Jeffrey Pennington"
        ),
    ),
    (
        "yang2020feature",
        "2011.14522",
        "Feature Learning in Infinite-Width Neural Networks",
        "Greg Yang, Edward J. Hu",
    ),
    (
        "yang2022tensor",
        "2203.03466",
        "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer",
        (
            "Greg Yang, Edward J. Hu, Igor Babuschkin, Szymon Sidor, Xiaodong Liu, David Farhi,"
            " Nick Ryder, Jakub Pachocki, Weizhu Chen, Jianfeng Gao"
        ),
    ),
    (
        "yang2023depth",
        "2310.02244",
        "Tensor Programs VI: Feature Learning in Infinite-Depth Neural Networks",
        "Greg Yang, Dingli Yu, Chen Zhu, Soufiane Hayou",
    ),
    (
        "dey2025completep",
        "2505.01618",
        "Don't be lazy: CompleteP enables compute-efficient deep transformers",
        (
            "Nolan Dey, Bin Claire Zhang, Lorenzo Noci, Mufan Li, Blake Bordelon, Shane Bergsma,"
            " Cengiz Pehlevan, Boris Hanin, Joel Hestness"
        ),
    ),
    (
        "yang2023spectral",
        "2310.17813",
        "A Spectral Condition for Feature Learning",
        "Greg Yang, James B. Simon, Jeremy Bernstein",
    ),
    (
        "mei2018mean",
        "1804.06561",
        "A mean field view of the landscape of two-layers neural networks",
        "Song Mei, Andrea Montanari, Phan-Minh Nguyen",
    ),
    # signals and kernels of wide networks
    (
        "poole2016exponential",
        "1606.05340",
        "Exponential expressivity in deep neural networks through transient chaos",
        "Ben Poole, Subhaneil Lahiri, Maithra Raghu, Jascha Sohl-Dickstein, Surya Ganguli",
    ),
    (
        "schoenholz2016deep",
        "1611.01232",
        "Deep Information Propagation",
        "Samuel S. Schoenholz, Justin Gilmer, Surya Ganguli, Jascha Sohl-Dickstein",
    ),
    (
        "pennington2017resurrecting",
        "1711.04735",
        "Resurrecting the sigmoid in deep learning through dynamical isometry: theory and practice",
        "Jeffrey Pennington, Samuel S. Schoenholz, Surya Ganguli",
    ),
    (
        "roberts2021principles",
        "2106.10165",
        "The Principles of Deep Learning Theory",
        "Daniel A. Roberts, Sho Yaida, Boris Hanin",
    ),
    (
        "lee2017deep",
        "1711.00165",
        "Deep Neural Networks as Gaussian Processes",
        (
            "Jaehoon Lee, Yasaman Bahri, Roman Novak, Samuel S. Schoenholz, Jeffrey Pennington,"
            " Jascha Sohl-Dickstein"
        ),
    ),
    (
        "jacot2018neural",
        "1806.07572",
        "Neural Tangent Kernel: Convergence and Generalization in Neural Networks",
        "Arthur Jacot, Franck Gabriel, Clément Hongler",
    ),
    # depth that grows with width
    (
        "li2022neural",
        "2206.02768",
        "The Neural Covariance SDE: Shaped Infinite Depth-and-Width Networks at Initialization",
        "Mufan Bill Li, Mihai Nica, Daniel M. Roy",
    ),
    (
        "hayou2023width",
        "2302.00453",
        "Width and Depth Limits Commute in Residual Networks",
        "Soufiane Hayou, Greg Yang",
    ),
    (
        "martens2021rapid",
        "2110.01765",
        (
            "Rapid training of deep neural networks without skip connections or normalization"
            " layers using Deep Kernel Shaping"
        ),
        (
            "James Martens, Andy Ballard, Guillaume Desjardins, Grzegorz Swirszcz, Valentin"
            " Dalibard, Jascha Sohl-Dickstein, Samuel S. Schoenholz"
        ),
    ),
    (
        "zhang2022deep",
        "2203.08120",
        "Deep Learning without Shortcuts: Shaping the Kernel with Tailored Rectifiers",
        "Guodong Zhang, Aleksandar Botev, James Martens",
    ),
    # optimizers
    (
        "kingma2014adam",
        "1412.6980",
        "Adam: A Method for Stochastic Optimization",
        "Diederik P. Kingma, Jimmy Ba",
    ),
    (
        "loshchilov2017decoupled",
        "1711.05101",
        "Decoupled Weight Decay Regularization",
        "Ilya Loshchilov, Frank Hutter",
    ),
    (
        "shazeer2018adafactor",
        "1804.04235",
        "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
        "Noam Shazeer, Mitchell Stern",
    ),
    (
        "bernstein2018signsgd",
        "1802.04434",
        "signSGD: Compressed Optimisation for Non-Convex Problems",
        "Jeremy Bernstein, Yu-Xiang Wang, Kamyar Azizzadenesheli, Anima Anandkumar",
    ),
    (
        "chen2023symbolic",
        "2302.06675",
        "Symbolic Discovery of Optimization Algorithms",
        (
            "Xiangning Chen, Chen Liang, Da Huang, Esteban Real, Kaiyuan Wang, Yao Liu, Hieu Pham,"
            " Xuanyi Dong, Thang Luong, Cho-Jui Hsieh, Yifeng Lu, Quoc V. Le"
        ),
    ),
    (
        "gupta2018shampoo",
        "1802.09568",
        "Shampoo: Preconditioned Stochastic Tensor Optimization",
        "Vineet Gupta, Tomer Koren, Yoram Singer",
    ),
    (
        "vyas2024soap",
        "2409.11321",
        "SOAP: Improving and Stabilizing Shampoo using Adam",
        (
            "Nikhil Vyas, Depen Morwani, Rosie Zhao, Mujin Kwun, Itai Shapira, David"
            " Brandfonbrener, Lucas Janson, Sham Kakade"
        ),
    ),
    (
        "qiu2025hyperparameter",
        "2512.05620",
        (
            "Hyperparameter Transfer Enables Consistent Gains of Matrix-Preconditioned Optimizers"
            " Across Scales"
        ),
        "Shikai Qiu, Zixi Chen, Hoang Phan, Qi Lei, Andrew Gordon Wilson",
    ),
    (
        "pagliardini2024ademamix",
        "2409.03137",
        "The AdEMAMix Optimizer: Better, Faster, Older",
        "Matteo Pagliardini, Pierre Ablin, David Grangier",
    ),
    (
        "defazio2024road",
        "2405.15682",
        "The Road Less Scheduled",
        (
            "Aaron Defazio, Xingyu Alice Yang, Harsh Mehta, Konstantin Mishchenko, Ahmed Khaled,"
            " Ashok Cutkosky"
        ),
    ),
    (
        "dettmers2021optimizers",
        "2110.02861",
        "8-bit Optimizers via Block-wise Quantization",
        "Tim Dettmers, Mike Lewis, Sam Shleifer, Luke Zettlemoyer",
    ),
    (
        "liu2025muon",
        "2502.16982",
        "Muon is Scalable for LLM Training",
        (
            "Jingyuan Liu, Jianlin Su, Xingcheng Yao, Zhejun Jiang, Guokun Lai, Yulun Du, Yidao"
            " Qin, Weixin Xu, Enzhe Lu, Junjie Yan, Yanru Chen, Huabin Zheng, Yibo Liu, Shaowei"
            " Liu, Bohong Yin, Weiran He, Han Zhu, Yuzhi Wang, Jianzhou Wang, Mengnan Dong, Zheng"
            " Zhang, Yongsheng Kang, Hao Zhang, Xinran Xu, Yutao Zhang, Yuxin Wu, Xinyu Zhou,"
            " Zhilin Yang"
        ),
    ),
    (
        "li2025normuon",
        "2510.05491",
        "NorMuon: Making Muon more efficient and scalable",
        "Zichong Li, Liming Liu, Chen Liang, Weizhu Chen, Tuo Zhao",
    ),
    (
        "ahn2025dion",
        "2504.05295",
        "Dion: Distributed Orthonormalized Updates",
        (
            "Kwangjun Ahn, Byron Xu, Natalie Abreu, Ying Fan, Gagik Magakyan, Pratyusha Sharma,"
            " Zheng Zhan, John Langford"
        ),
    ),
    # models
    (
        "dosovitskiy2020image",
        "2010.11929",
        "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale",
        (
            "Alexey Dosovitskiy, Lucas Beyer, Alexander Kolesnikov, Dirk Weissenborn, Xiaohua Zhai,"
            " Thomas Unterthiner, Mostafa Dehghani, Matthias Minderer, Georg Heigold, Sylvain"
            " Gelly, Jakob Uszkoreit, Neil Houlsby"
        ),
    ),
    (
        "lewis2019bart",
        "1910.13461",
        (
            "BART: Denoising Sequence-to-Sequence Pre-training for Natural Language Generation,"
            " Translation, and Comprehension"
        ),
        (
            "Mike Lewis, Yinhan Liu, Naman Goyal, Marjan Ghazvininejad, Abdelrahman Mohamed, Omer"
            " Levy, Ves Stoyanov, Luke Zettlemoyer"
        ),
    ),
    (
        "shuster2022language",
        "2203.13224",
        (
            "Language Models that Seek for Knowledge: Modular Search & Generation for Dialogue and"
            " Prompt Completion"
        ),
        (
            "Kurt Shuster, Mojtaba Komeili, Leonard Adolphs, Stephen Roller, Arthur Szlam, Jason"
            " Weston"
        ),
    ),
)
MUON = Citation(
    "jordan2024muon",
    "Muon: An optimizer for hidden layers in neural networks",
    (
        "Keller Jordan",
        "Yuchen Jin",
        "Vlado Boza",
        "Jiacheng You",
        "Franz Cesista",
        "Laker Newhouse",
        "Jeremy Bernstein",
    ),
    year=2024,
    url="https://kellerjordan.github.io/posts/muon/",
)
RMSPROP = Citation(
    "tieleman2012rmsprop",
    "Lecture 6.5, RMSprop: Divide the gradient by a running average of its recent magnitude",
    ("Tijmen Tieleman", "Geoffrey Hinton"),
    year=2012,
    url="https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf",
)
NADAM = Citation(
    "dozat2016incorporating",
    "Incorporating Nesterov Momentum into Adam",
    ("Timothy Dozat",),
    year=2016,
    url="https://openreview.net/forum?id=OM0jvwB8jIp57ZJjtNEZ",
)
ADAGRAD = Citation(
    "duchi2011adaptive",
    "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
    ("John Duchi", "Elad Hazan", "Yoram Singer"),
    year=2011,
    url="https://jmlr.org/papers/v12/duchi11a.html",
)
_ARXIV = tuple(
    Citation(key, title, tuple(authors.split(", ")), arxiv=arxiv)
    for key, arxiv, title, authors in _MORE
)
PAPERS = {
    paper.key: paper for paper in (ORDERONE, S0, S1, S2, S3, *_ARXIV, MUON, RMSPROP, NADAM, ADAGRAD)
}
