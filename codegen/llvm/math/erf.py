"""Vector math: the error function in float, by pieces: 16 polynomials of degree 5, whose coefficients are looked up.

A lookup in a table of 16 floats is one instruction of AVX-512 (`lookup` in `common.py`), so this is fewer
instructions than one polynomial near 0 and another one, with a division, for the rest.

The piece is the one whose node x_i is nearest to |x|, about, and there erf(|x|) = erf(x_i) + u p_i(u), u = |x| - x_i. Nodes
are near i / SCALE, where erf(x_i) is a float but for 0.002 units in the last place. The first one is 0: there erf(x) is
x + x p(x), so that nothing is lost where erf is small. The p_i are minimax fits of degree 4 of the relative error, which is
2.8e-8 at the most, rounded from the lowest coefficient up with the rest fitted again each time.
"""

from __future__ import annotations

from ..ir.builder import Function, Value
from .common import as_bits, at_most, constant_like, format_of, lookup, magnitude, with_sign

NODES_PER_UNIT = 3.9375  # nodes for each unit
ERF_ONE_FROM = 3.925  # erf is 1 from here on
NODES = (
    0.0,
    0.2540164291858673,
    0.5079708695411682,
    0.761942446231842,
    1.0159293413162231,
    1.2699071168899536,
    1.5238338708877563,
    1.7778288125991821,
    2.0317542552948,
    2.285621404647827,
    2.539808511734009,
    2.793609380722046,
    3.0475714206695557,
    3.3008573055267334,
    3.5605361461639404,
    3.832254648208618,
)
VALUES = (  # erf of the nodes
    0.0,
    0.2805795669555664,
    0.5274765491485596,
    0.7187650799751282,
    0.849208414554596,
    0.9274927377700806,
    0.9688402414321899,
    0.9880707263946533,
    0.9959383606910706,
    0.9987722635269165,
    0.9996716380119324,
    0.9999220967292786,
    0.9999836683273315,
    0.9999969601631165,
    0.9999995231628418,
    0.9999999403953552,
)
COEFFICIENTS = (  # of each power, the highest first: one for each piece
    (
        0.11079081147909164,
        0.07981988042593002,
        0.005780091509222984,
        -0.054274193942546844,
        -0.06820041686296463,
        -0.04453136399388313,
        -0.012322044000029564,
        0.007841922342777252,
        0.01302267424762249,
        0.010008687153458595,
        0.0054890490137040615,
        0.0023660340812057257,
        0.0008339928463101387,
        0.0002454117638990283,
        6.10499846516177e-05,
        1.3405136087385472e-05,
    ),
    (
        0.0003263036778662354,
        0.12769123911857605,
        0.18221837282180786,
        0.1468910574913025,
        0.06382673233747482,
        -0.010244510136544704,
        -0.045794691890478134,
        -0.046906109899282455,
        -0.03236798569560051,
        -0.017309198155999184,
        -0.007529182825237513,
        -0.002735586604103446,
        -0.0008401225786656141,
        -0.00022096221800893545,
        -4.7973142500268295e-05,
        -8.056009392021224e-06,
    ),
    (
        -0.3761443793773651,
        -0.3071349263191223,
        -0.14063617587089539,
        0.03389953449368477,
        0.14259758591651917,
        0.16686078906059265,
        0.1344221979379654,
        0.08485937863588333,
        0.043980687856674194,
        0.019138121977448463,
        0.007070367224514484,
        0.0022416291758418083,
        0.0006117596640251577,
        0.00014495007053483278,
        2.855005004676059e-05,
        4.43864200860844e-06,
    ),
    (
        3.314805780973984e-07,
        -0.2687123119831085,
        -0.4428183436393738,
        -0.48110777139663696,
        -0.40839317440986633,
        -0.28566664457321167,
        -0.1686304211616516,
        -0.08505220711231232,
        -0.03694429621100426,
        -0.013888844288885593,
        -0.004526430740952492,
        -0.0012859408743679523,
        -0.00031821528682485223,
        -6.902544555487111e-05,
        -1.2532024811662268e-05,
        -1.810302137528197e-06,
    ),
    (
        0.12837916612625122,
        1.0578705072402954,
        0.8717504143714905,
        0.6314263343811035,
        0.4019891619682312,
        0.2249489426612854,
        0.1106605976819992,
        0.04784000292420387,
        0.018183454871177673,
        0.006076763849705458,
        0.0017823104280978441,
        0.00046037446008995175,
        0.0001044389937305823,
        2.0918545487802476e-05,
        3.521550070217927e-06,
        4.724918198917294e-07,
    ),
)


def erf(f: Function, x: Value) -> Value:
    size = at_most(f, magnitude(f, x), ERF_ONE_FROM)
    piece = as_bits(
        f, f.fma(size, constant_like(NODES_PER_UNIT, x), constant_like(format_of(x).magic, x))
    )  # in the lowest bits
    u = f.sub(size, lookup(f, NODES, piece))
    start = f.select(f.compare("lt", size, constant_like(0.5 / NODES_PER_UNIT, x)), size, lookup(f, VALUES, piece))
    bend = lookup(f, COEFFICIENTS[0], piece)
    for coefficients in COEFFICIENTS[1:]:
        bend = f.fma(bend, u, lookup(f, coefficients, piece))
    return with_sign(f, f.fma(bend, u, start), x)
