"use strict";
// The explorer: four sliders determine everything else. Data flows one way:
// controls -> state -> numbers -> tiles and drawings.
(() => {
  const LONGEST = 1e18, SHARPEST = 12, DECADES = 12;
  const BOX = { left: 58, right: 542, top: 14, bottom: 348 };
  const SVG = "http://www.w3.org/2000/svg";
  const form = document.querySelector(".controls");
  const gapPanel = document.querySelector("svg.gap");
  const phasePanel = document.querySelector(".phases svg");
  const slider = (name) => form.querySelector(`[name=${name}]`); // form.elements.length is a count
  const tile = (name) => document.querySelector(`[data-tile=${name}]`);

  // --- state -------------------------------------------------------------------------------------
  const from10 = (exponent) => 10 ** Number(exponent);
  const READ = { // from the position of a slider to a number, and back
    sharpness: [Number, Number],
    length: [(place) => Math.max(1, Math.round(from10(place))), Math.log10],
    dimension: [(place) => 2 ** Number(place), Math.log2],
    tolerance: [(place) => Number(from10(place).toPrecision(2)), Math.log10],
  };
  const state = { sharpness: 2, length: 1000, dimension: 8, tolerance: 0.1 };

  function fromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const name of Object.keys(state)) {
      const value = Number(given.get(name));
      if (value > 0 && Number.isFinite(value)) state[name] = clamped(name, value);
    }
  }

  function clamped(name, value) {
    const { min, max } = slider(name), [number, place] = READ[name];
    const inside = Math.min(number(max), Math.max(number(min), value));
    return name === "length" ? Math.round(inside) : Number.isFinite(place(inside)) ? inside : value;
  }

  // --- numbers -----------------------------------------------------------------------------------
  const relativeGap = ({ scoreError, participation }, s, d) =>
    Math.sqrt(scoreError + (d - 1) * participation) / s;

  // The smallest length whose gap is at most the tolerance; NaN beyond LONGEST.
  function neededLength(head, s, d, tolerance) {
    const gap = (L) => relativeGap(head.at(L), s, d);
    if (gap(1) <= tolerance) return 1;
    if (!(gap(LONGEST) <= tolerance)) return NaN;
    let low = 0, high = Math.log(LONGEST);
    while (high - low > 1e-13 * high && Math.exp(high) - Math.exp(low) > 0.4) {
      const middle = (low + high) / 2;
      if (gap(Math.exp(middle)) > tolerance) low = middle;
      else high = middle;
    }
    const guess = Math.max(2, Math.floor(Math.exp(high)) - 1);
    if (guess > 1e12) return Math.ceil(Math.exp(high));
    for (let L = guess; ; L++) if (gap(L) <= tolerance) return L;
  }

  const leadingGap = (L, s, d) => Math.sqrt((Math.exp(s * s) * (d + s * s)) / L) / s;
  const LENGTHS = Array.from({ length: 4 * DECADES + 1 }, (_, n) => Math.round(10 ** (n / 4)));

  function computed({ sharpness: s, length: L, dimension: d, tolerance }) {
    const head = weights.head(s, 2, LONGEST);
    const here = head.at(L);
    return {
      ...here,
      tokens: 1 / here.participation,
      gap: relativeGap(here, s, d),
      curve: LENGTHS.map((length) => relativeGap(head.at(length), s, d)),
      needed: neededLength(head, s, d, tolerance),
      leading: Math.ceil((Math.exp(s * s) * (d + s * s)) / (s * tolerance) ** 2),
      order: L > 1 ? (s * s) / Math.log(L) : Infinity,
    };
  }

  // --- text --------------------------------------------------------------------------------------
  const superscript = (n) => String(n).replace(/./g, (c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] || "⁻");

  function shown(value, digits = 4) {
    if (!Number.isFinite(value)) return "beyond 10¹⁸";
    if (value >= 1e7 || (value < 1e-3 && value > 0)) {
      const power = Math.floor(Math.log10(value));
      return `${(value / 10 ** power).toFixed(2)} × 10${superscript(power)}`;
    }
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return value.toPrecision(digits);
  }

  const chosen = (value) => (value < 1e7 ? value.toLocaleString("en", { maximumSignificantDigits: 12 }) : shown(value));

  const regime = (order) => (order <= 2 / 3 ? "spread" : order <= 2 ? "concentrating" : "frozen");

  function python({ sharpness, length, dimension, tolerance }) {
    return [
      "import numpy as np, promptlimit as pl",
      `d, sharpness, length = ${dimension}, ${sharpness}, ${length}`,
      "attention = pl.SoftmaxAttention(np.eye(d), np.eye(d))",
      "tokens, query = pl.Gaussian(np.zeros(d), np.eye(d)), sharpness * np.eye(d)[0]",
      "moments = pl.prompt_moments(attention, tokens, query, length)",
      "print(moments.effective_tokens, moments.mse ** 0.5 / sharpness)",
      `print(pl.required_length(attention, tokens, query[None], ${tolerance}).exact)`,
    ].join("\n");
  }

  // --- drawing -----------------------------------------------------------------------------------
  function element(name, attributes, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  const across = (share) => BOX.left + share * (BOX.right - BOX.left);
  const up = (share) => BOX.bottom - share * (BOX.bottom - BOX.top);
  const lengthAt = (L) => across(Math.log10(L) / DECADES);

  function axes(panel, rows, rowLabel, sideLabel) {
    panel.append(element("path", { class: "axis", d: `M${BOX.left} ${BOX.top}V${BOX.bottom}H${BOX.right}` }));
    for (let n = 0; n <= DECADES; n += 2) {
      const x = across(n / DECADES);
      panel.append(element("path", { class: "axis", d: `M${x} ${BOX.bottom}v5` }));
      panel.append(element("text", { x, y: BOX.bottom + 20, "text-anchor": "middle" }, n ? `10${superscript(n)}` : "1"));
    }
    for (const [share, label] of rows) {
      panel.append(element("path", { class: "axis", d: `M${BOX.left} ${up(share)}h-5` }));
      panel.append(element("text", { x: BOX.left - 9, y: up(share) + 4, "text-anchor": "end" }, label));
    }
    panel.append(element("text", { x: (BOX.left + BOX.right) / 2, y: BOX.bottom + 42, "text-anchor": "middle" }, rowLabel));
    const middle = (BOX.top + BOX.bottom) / 2;
    panel.append(element("text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, sideLabel));
  }

  const GAP_TOP = 1, GAP_DECADES = 7; // from 10 down to 1e-6
  const gapAt = (gap) => up(1 - (GAP_TOP - Math.log10(gap)) / GAP_DECADES);
  const inBox = (y) => Math.min(BOX.bottom, Math.max(BOX.top, y));

  function gapDrawing() {
    const rows = Array.from({ length: GAP_DECADES + 1 }, (_, n) => [1 - n / GAP_DECADES, n === 0 ? "10" : n === 1 ? "1" : `10${superscript(GAP_TOP - n)}`]);
    axes(gapPanel, rows, "length L", "relative gap");
    const moving = element("g", {});
    gapPanel.append(moving);
    return (numbers) => {
      const path = (gaps) => "M" + gaps.map((gap, n) => `${lengthAt(LENGTHS[n]).toFixed(1)} ${inBox(gapAt(gap)).toFixed(1)}`).join("L");
      const { sharpness, dimension, tolerance, length } = state;
      const leading = LENGTHS.map((L) => leadingGap(L, sharpness, dimension));
      const parts = [
        element("path", { class: "leading", d: path(leading) }),
        element("path", { class: "tolerance", d: `M${BOX.left} ${inBox(gapAt(tolerance))}H${BOX.right}` }),
        element("path", { class: "exact", d: path(numbers.curve) }),
      ];
      if (numbers.needed <= 10 ** DECADES) {
        const x = lengthAt(numbers.needed);
        parts.push(element("path", { class: "tolerance", d: `M${x} ${inBox(gapAt(tolerance))}V${BOX.bottom}` }));
        parts.push(element("circle", { class: "met", cx: x, cy: inBox(gapAt(tolerance)), r: 4 }));
      }
      parts.push(element("circle", { class: "here", cx: lengthAt(length), cy: inBox(gapAt(numbers.gap)), r: 6 }));
      moving.replaceChildren(...parts);
    };
  }

  const sharpnessAt = (s) => up(Math.min(1, s / SHARPEST));

  function phaseDrawing() {
    const rows = [0, 2, 4, 6, 8, 10, 12].map((s) => [s / SHARPEST, String(s)]);
    axes(phasePanel, rows, "length L", "sharpness σ");
    for (const [factor, label] of [[2 / 3, "spread below"], [2, "frozen above"]]) {
      const smooth = Array.from({ length: 20 * DECADES + 1 }, (_, n) => 10 ** (n / 20));
      const points = smooth.map((L) => `${lengthAt(L).toFixed(1)} ${sharpnessAt(Math.sqrt(factor * Math.log(L))).toFixed(1)}`);
      phasePanel.append(element("path", { class: "line", d: "M" + points.join("L") }));
      const y = sharpnessAt(Math.sqrt(factor * Math.log(1e11)));
      phasePanel.append(element("text", { class: "label", x: lengthAt(1e11), y: factor === 2 ? y - 12 : y + 22, "text-anchor": "end" }, label));
    }
    for (const [s, L, label] of JSON.parse(document.getElementById("dots").textContent)) {
      const dot = element("circle", { class: "head", cx: lengthAt(L), cy: sharpnessAt(s), r: 3.2 });
      dot.append(element("title", {}, label));
      phasePanel.append(dot);
    }
    const here = element("circle", { class: "here", r: 6 });
    phasePanel.append(here);
    return () => {
      here.setAttribute("cx", lengthAt(state.length));
      here.setAttribute("cy", sharpnessAt(state.sharpness));
    };
  }

  // Colours of the phase diagram: ln(effective tokens) / ln L from 0 to 1 at the centres of few, large pixels, which the
  // browser interpolates. The style sheet hides the diagram until it is painted.
  function paintPhases(canvas) {
    const brush = canvas.getContext("2d"), { width, height } = canvas;
    const ends = [[194, 85, 45], [47, 120, 183]];
    const image = brush.createImageData(width, height);
    for (let row = 0; row < height; row++) {
      const head = weights.head(SHARPEST * (1 - (row + 0.5) / height), 2, 10 ** DECADES);
      for (let n = 0; n < width; n++) {
        const L = Math.max(2, 10 ** ((DECADES * (n + 0.5)) / width));
        const share = -Math.log(head.at(L).participation) / Math.log(L);
        const colour = ends[0].map((low, c) => low + (ends[1][c] - low) * Math.min(1, Math.max(0, share)));
        image.data.set([...colour, 255], 4 * (row * width + n));
      }
    }
    brush.putImageData(image, 0, 0);
    canvas.dataset.painted = "yes";
  }

  // --- one frame -----------------------------------------------------------------------------------
  const drawGap = gapDrawing(), drawPhase = phaseDrawing();
  const code = document.querySelector(".python code");

  function show() {
    const numbers = computed(state);
    for (const name of Object.keys(state)) {
      const input = slider(name);
      input.value = READ[name][1](state[name]);
      input.setAttribute("aria-valuetext", chosen(state[name]));
      input.parentElement.querySelector("b").textContent = chosen(state[name]);
    }
    tile("tokens").textContent = shown(numbers.tokens);
    tile("shrinkage").textContent = shown(numbers.shrinkage);
    tile("gap").textContent = shown(numbers.gap);
    tile("verdict").textContent = numbers.gap <= state.tolerance ? "within ε" : "above ε";
    tile("needed").textContent = shown(numbers.needed);
    tile("leading").textContent = `leading order: ${shown(numbers.leading)}`;
    tile("regime").textContent = regime(numbers.order);
    tile("order").textContent = `σ² / ln L = ${numbers.order === Infinity ? "∞" : shown(numbers.order)}`;
    code.textContent = python(state);
    drawGap(numbers);
    drawPhase();
    return numbers;
  }

  let waiting = false;
  function changed(next) {
    Object.assign(state, next);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      show();
    });
  }

  function remember() {
    try {
      history.replaceState(null, "", `#${new URLSearchParams(state)}`);
    } catch { /* some browsers keep the addresses of files as they are */ }
  }

  form.addEventListener("input", ({ target }) => changed({ [target.name]: READ[target.name][0](target.value) }));
  form.addEventListener("change", remember);
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const button of document.querySelectorAll("[data-preset]")) {
    button.addEventListener("click", () => {
      changed(JSON.parse(button.dataset.preset));
      remember();
    });
  }
  phasePanel.addEventListener("click", (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(phasePanel.getScreenCTM().inverse());
    const share = (place.x - BOX.left) / (BOX.right - BOX.left);
    const height = (BOX.bottom - place.y) / (BOX.bottom - BOX.top);
    if (share < 0 || share > 1 || height < 0 || height > 1) return;
    const sharpness = Math.max(0.05, Math.round(20 * height * SHARPEST) / 20);
    changed({ length: Math.max(1, Math.round(10 ** (share * DECADES))), sharpness });
    remember();
  });

  const copy = document.querySelector(".copy");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1200);
  });

  addEventListener("hashchange", () => {
    fromAddress();
    show();
  });
  fromAddress();
  paintPhases(document.querySelector(".phases canvas"));
  show();
})();
