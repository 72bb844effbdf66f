"use strict";
// Exact statistics of the softmax weights of L scores of sharpness s, by the quadrature rule and nodes
// of promptlimit.weight_statistics. The cost does not depend on the lengths.
const weights = (() => {
  const STEP = 3 / 16; // of the nodes in t and u: a dyadic fraction, so that nodes are exact
  const NEGLIGIBLE = -46;
  const ROOT_TAU = Math.sqrt(2 * Math.PI);

  // --- the normal law ----------------------------------------------------------------------------
  // erfc x = e^(-x^2) (h x / pi) (1/x^2 + 2 sum_k e^(-k^2 h^2) / (k^2 h^2 + x^2)) + 2 / (1 - e^(2 pi x / h)):
  // the trapezoidal rule plus the residue of a pole. Near zero these cancel, so the series of erf is used.
  function erfc(x) {
    if (x < 0) return 2 - erfc(-x);
    if (x < 0.75) {
      let term = x, sum = x;
      for (let n = 1; n < 24; n++) {
        term *= (-x * x) / n;
        sum += term / (2 * n + 1);
      }
      return 1 - (2 / Math.sqrt(Math.PI)) * sum;
    }
    const h = 0.5;
    let sum = 1 / (x * x);
    for (let k = 1; k < 14; k++) sum += (2 * Math.exp(-k * k * h * h)) / (k * k * h * h + x * x);
    const passed = x < Math.PI / h ? 2 / -Math.expm1((2 * Math.PI * x) / h) : 0;
    return ((h * x) / Math.PI) * Math.exp(-x * x) * sum + passed;
  }

  const below = (x) => 0.5 * erfc(-x / Math.SQRT2); // P(g < x)

  // log P(g < x); by its continued fraction where P underflows.
  function logBelow(x) {
    if (x > 5) return Math.log1p(-below(-x));
    if (x > -20) return Math.log(below(x));
    const y = x * x;
    return -0.5 * y - Math.log(-x * ROOT_TAU) + Math.log1p(-1 / y + 3 / (y * y) - 15 / y ** 3);
  }

  function bisected(low, high, width, isBelow) {
    while (high - low > width) {
      const middle = (low + high) / 2;
      if (isBelow(middle)) low = middle;
      else high = middle;
    }
    return high;
  }

  // The x with log P(g < x) = y, computed from the tail with the smaller probability.
  function quantile(y) {
    if (y < -0.5) return bisected(-40, 40, 1e-9, (x) => logBelow(x) < y);
    const upper = Math.log(-Math.expm1(y));
    return bisected(-40, 40, 1e-9, (x) => logBelow(-x) > upper);
  }

  // --- which nodes ---------------------------------------------------------------------------------
  function logSum(a, b) {
    const top = Math.max(a, b);
    return top + Math.log1p(Math.exp(Math.min(a, b) - top));
  }

  // log E min(1, e^(s g - x)); 1 - phi(-x) is 0.63 to 1 times this mean.
  function logOverlap(x, s) {
    return logSum(logBelow(-x / s), (s * s) / 2 - x + logBelow(x / s - s));
  }

  function overlapQuantile(target, s) {
    const low = -40 * s - 10, high = (s * s) / 2 - target + 40 * s;
    return bisected(low, high, STEP, (x) => logOverlap(x, s) > target);
  }

  // The first and last index of the nodes u = STEP * index for lengths in a range.
  function nodeRange(s, shortest, longest) {
    const left = -overlapQuantile(NEGLIGIBLE - Math.log(longest), s);
    let right = 4.1 - s * quantile(NEGLIGIBLE / shortest);
    const target = Math.log(60 / 0.63) - Math.log(shortest);
    if (target < -1e-3) right = Math.min(right, -overlapQuantile(target, s) + 2 * STEP);
    return [Math.floor(left / STEP), Math.ceil(right / STEP)];
  }

  // --- transforms of one score -----------------------------------------------------------------------
  // phi(u) = E exp(-e^t) and a_kj(u) = E (g - s)^j e^(kt) exp(-e^t), t = s g + u.
  function emptyTransforms(count) {
    const names = ["logPhi", "a10", "a20", "a22"];
    return Object.fromEntries(names.map((name) => [name, new Float64Array(count)]));
  }

  const logOf = (phi, rest) => (rest < 0.5 ? Math.log1p(-rest) : Math.log(Math.max(phi, 2.3e-308)));

  // Sums over nodes in g.
  function narrowTransforms(s, first, count) {
    const step = Math.min(STEP / s, 0.33), start = Math.floor(-9 / step);
    const size = Math.ceil((9 + 4 * s) / step) + 1 - start;
    const g = Float64Array.from({ length: size }, (_, n) => step * (start + n));
    const weight = g.map((x) => (step * Math.exp(-0.5 * x * x)) / ROOT_TAU);
    const tilt = g.map((x) => Math.exp(s * x));
    const made = emptyTransforms(count);
    for (let i = 0; i < count; i++) {
      const scale = Math.exp(STEP * (first + i));
      let phi = 0, rest = 0, a10 = 0, a20 = 0, a22 = 0;
      for (let n = 0; n < size; n++) {
        const score = scale * tilt[n], missing = -Math.expm1(-score), kept = Math.exp(-score);
        const once = kept * weight[n] * tilt[n], twice = once * tilt[n], h = g[n] - s;
        phi += kept * weight[n];
        rest += missing * weight[n];
        a10 += once;
        a20 += twice;
        a22 += twice * h * h;
      }
      made.logPhi[i] = logOf(phi, rest);
      made.a10[i] = scale * a10;
      made.a20[i] = scale * scale * a20;
      made.a22[i] = scale * scale * a22;
    }
    return made;
  }

  // The first node in t, from the decay of the integrands at the lowest u.
  function lowestT(s, u, longest) {
    const slope = 1 + u / (s * s), spread = Math.sqrt(80) * s;
    const start = slope > 0 ? -Math.min(spread, 40 / slope) : u + s * s - spread;
    return Math.min(start, -Math.log(longest) - 40);
  }

  // Convolutions: kernels depend only on t - u, and 1 - phi = int F_1(t) P(g < (u - t) / s) dt.
  function wideTransforms(s, first, count, longest) {
    const lowest = Math.floor(lowestT(s, STEP * first, longest) / STEP);
    const size = Math.ceil(5.0625 / STEP) - lowest, span = count - 1;
    const once = new Float64Array(size), twice = new Float64Array(size);
    for (let n = 0; n < size; n++) {
      const t = STEP * (lowest + n);
      once[n] = Math.exp(t - Math.exp(t));
      twice[n] = Math.exp(2 * t - Math.exp(t));
    }
    const length = span + size;
    const density = new Float64Array(length), square = new Float64Array(length);
    const under = new Float64Array(length), over = new Float64Array(length);
    for (let n = 0; n < length; n++) {
      const x = (STEP * (lowest - first - span + n)) / s;
      density[n] = (Math.exp(-0.5 * x * x) * STEP) / (s * ROOT_TAU);
      square[n] = density[n] * (x - s) * (x - s);
      under[n] = STEP * below(x);
      over[n] = STEP * below(-x);
    }
    const made = emptyTransforms(count);
    for (let i = 0; i < count; i++) {
      const shift = span - i;
      let phi = 0, rest = 0, a10 = 0, a20 = 0, a22 = 0;
      for (let n = 0; n < size; n++) {
        const at = shift + n, f = once[n], f2 = twice[n];
        phi += f * under[at];
        rest += f * over[at];
        a10 += f * density[at];
        a20 += f2 * density[at];
        a22 += f2 * square[at];
      }
      made.logPhi[i] = logOf(phi, rest);
      made.a10[i] = a10;
      made.a20[i] = a20;
      made.a22[i] = a22;
    }
    return made;
  }

  // --- statistics --------------------------------------------------------------------------------------
  // A head of sharpness s over lengths in a range. Its transforms are computed once, then a sum per length.
  // participation E S_2 = [a20]_1, shrinkage 1 - E S_2 = [a10^2]_2 and scoreError E (A - s)^2 =
  // [a22]_1 + [(s a20)^2]_2, where [f]_b = L (L-1)...(L-b+1) int f phi^(L-b) du.
  function head(s, shortest, longest) {
    if (s === 0 || longest < 2) return { at: (L) => closedForms(s, L) };
    const [first, last] = nodeRange(s, Math.max(shortest, 2), longest);
    const count = last - first + 1;
    const { logPhi, a10, a20, a22 } =
      s <= 1 ? narrowTransforms(s, first, count) : wideTransforms(s, first, count, longest);
    function at(L) {
      if (L < 2) return closedForms(s, L);
      let one = 0, oneError = 0, two = 0, twoError = 0;
      for (let i = 0; i < count; i++) {
        const power = Math.exp(logPhi[i] * (L - 2)), powers = power * Math.exp(logPhi[i]);
        one += a20[i] * powers;
        oneError += a22[i] * powers;
        two += a10[i] * a10[i] * power;
        twoError += s * a20[i] * (s * a20[i]) * power;
      }
      const once = L * STEP, twice = once * (L - 1);
      return {
        participation: once * one,
        shrinkage: twice * two,
        scoreError: once * oneError + twice * twoError,
      };
    }
    return { at };
  }

  // One token, or equal weights.
  function closedForms(s, L) {
    return {
      participation: 1 / L,
      shrinkage: 1 - 1 / L,
      scoreError: 1 / L + (L === 1 ? s * s : 0),
    };
  }

  return { head };
})();
