"use strict";
// This script switches between light and dark, marks the current section in the contents, hides curves
// and zooms in figures. The page is complete without it.

function build(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// --- light ---------------------------------------------------------------------------------------
function remembered(value) {
  try {
    if (value) localStorage.setItem("theme", value);
    return localStorage.getItem("theme");
  } catch {
    return null; // Some browsers store nothing for local files.
  }
}

function setUpLight(button) {
  const root = document.documentElement;
  const atNight = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (atNight.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  const before = remembered();
  if (before === "dark" || before === "light") root.dataset.theme = before;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    label();
  });
  atNight.addEventListener("change", label);
  button.hidden = false;
  label();
}

// --- contents that follow the reader -----------------------------------------------------------------
function setUpContents(contents) {
  const links = new Map();
  for (const link of contents.querySelectorAll("a")) {
    const target = document.getElementById(decodeURIComponent(link.hash.slice(1)));
    if (target) links.set(target, link);
  }
  const visible = new Set();
  const follow = (changes) => {
    for (const { target, isIntersecting } of changes) {
      if (isIntersecting) visible.add(target);
      else visible.delete(target);
    }
    // The current section is a visible one that contains no other visible section.
    const inSight = [...links.keys()].filter((target) => visible.has(target));
    const leaf = inSight.find((target) => !inSight.some((other) => other !== target && target.contains(other)));
    const current = links.get(leaf);
    for (const link of links.values()) {
      if (link === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    if (!current || getComputedStyle(contents).position !== "sticky") return;
    const { top, bottom } = current.getBoundingClientRect(), frame = contents.getBoundingClientRect();
    if (top < frame.top + 20) contents.scrollTop += top - frame.top - 60;
    else if (bottom > frame.bottom - 20) contents.scrollTop += bottom - frame.bottom + 60;
  };
  const observer = new IntersectionObserver(follow, { rootMargin: "-70px 0px -55% 0px" });
  for (const target of links.keys()) observer.observe(target);
}

function unfold() {
  // A link to a claim opens its evidence; printing opens all evidence.
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const evidence = target && target.querySelector("details.evidence");
  if (evidence) evidence.open = true;
}

// --- which series a figure shows -----------------------------------------------------------------
function seriesOf(svg) {
  const groups = new Map();
  for (const node of svg.querySelectorAll("[data-series]")) {
    const label = node.dataset.series;
    groups.set(label, [...(groups.get(label) || []), node]);
  }
  return groups;
}

function swatch(nodes) {
  const inked = nodes.flatMap((node) => [node, ...node.querySelectorAll("*")]);
  const paint = (key) => inked.map((node) => node.getAttribute(key)).find((c) => c && c !== "none");
  const stroke = paint("stroke"), fill = paint("fill");
  const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  icon.setAttribute("viewBox", "0 0 22 10");
  icon.setAttribute("aria-hidden", "true");
  line.setAttribute("d", "M0 5H22");
  line.setAttribute("stroke-width", stroke ? "3" : "8");
  line.setAttribute("stroke", stroke || fill || "currentColor");
  icon.append(line);
  return icon;
}

function chips(svg) {
  const groups = [...seriesOf(svg)];
  if (groups.length < 2) return [];
  const boxes = groups.map(([label, nodes]) => {
    const box = build("input", { type: "checkbox", checked: true });
    box.addEventListener("change", () => {
      for (const node of nodes) node.classList.toggle("hidden", !box.checked);
    });
    return build("label", { className: "chip drawn" }, box, swatch(nodes), label);
  });
  if (boxes.length < 4) return boxes;
  const all = build("button", { type: "button", textContent: "All or none" });
  all.addEventListener("click", () => {
    const inputs = boxes.map((chip) => chip.querySelector("input"));
    const show = !inputs.every((input) => input.checked);
    for (const input of inputs) {
      input.checked = show;
      input.dispatchEvent(new Event("change"));
    }
  });
  return [...boxes, all];
}

// --- a closer look -------------------------------------------------------------------------------
function ticksOf(svg) {
  // The tick labels, moved above the curves, with their positions and axes.
  return [...svg.querySelectorAll("[data-tick]")].flatMap((group) => {
    const text = group.querySelector("text"), axes = group.closest("[data-axes]");
    if (!text || !axes) return [];
    const paper = axes.querySelector("path").getBBox();
    const label = document.createElementNS("http://www.w3.org/2000/svg", "g");
    label.classList.add("tick");
    label.append(text.parentNode === group ? text : text.parentNode);
    svg.append(label);
    return [{ label, axis: group.dataset.tick, place: label.getBBox(), paper }];
  });
}

function pin({ label, axis, place, paper }, box, scale) {
  // Keep a label at its size, and inside the visible part while its axes are partly visible.
  const gap = 3 / scale, isAcross = axis === "x";
  const x = isAcross ? place.x + place.width / 2 : place.x + place.width;
  const y = isAcross ? place.y : place.y + place.height / 2;
  const left = box.x + gap - (x - place.width / scale);
  const down = box.y + box.height - gap - (y + place.height / scale);
  const inside = (from, size, start, length) => from < start + length && start < from + size;
  const seen = inside(paper.x, paper.width, box.x, box.width) && inside(paper.y, paper.height, box.y, box.height);
  const dx = seen && !isAcross ? Math.max(0, left) : 0, dy = seen && isAcross ? Math.min(0, down) : 0;
  label.setAttribute("transform", `translate(${x + dx} ${y + dy}) scale(${1 / scale}) translate(${-x} ${-y})`);
}

class View {
  // The visible part of a drawing is its viewBox, which stays inside the whole drawing.
  constructor(frame, svg) {
    this.frame = frame;
    this.svg = svg;
    this.whole = svg.viewBox.baseVal;
    this.whole = { x: this.whole.x, y: this.whole.y, width: this.whole.width, height: this.whole.height };
    this.ticks = ticksOf(svg);
    this.reset();
  }
  get scale() { return this.whole.width / this.box.width; }
  reset() { this.show({ ...this.whole }); }
  show(box) {
    const { whole } = this;
    box.x = Math.min(Math.max(box.x, whole.x), whole.x + whole.width - box.width);
    box.y = Math.min(Math.max(box.y, whole.y), whole.y + whole.height - box.height);
    this.box = box;
    this.svg.setAttribute("viewBox", `${box.x} ${box.y} ${box.width} ${box.height}`);
    this.frame.classList.toggle("zoomed", this.scale > 1.001);
    for (const tick of this.ticks) pin(tick, box, this.scale);
  }
  point(event) {
    // The position of a pointer, relative to the visible part of the drawing.
    const area = this.svg.getBoundingClientRect();
    return [(event.clientX - area.x) / area.width, (event.clientY - area.y) / area.height];
  }
  zoom(factor, [across, down] = [0.5, 0.5]) {
    const { box, whole } = this;
    const scale = Math.min(Math.max(this.scale * factor, 1), 40);
    const width = whole.width / scale, height = whole.height / scale;
    this.show({
      x: box.x + across * (box.width - width),
      y: box.y + down * (box.height - height),
      width,
      height,
    });
  }
  pan(across, down) {
    const { box } = this;
    this.show({ ...box, x: box.x + across * box.width, y: box.y + down * box.height });
  }
}

function listenToKeys(view) {
  const moves = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
  view.frame.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") view.zoom(1.4);
    else if (event.key === "-") view.zoom(1 / 1.4);
    else if (event.key === "0") view.reset();
    else if (moves[event.key] && view.scale > 1.001) view.pan(...moves[event.key]);
    else return;
    event.preventDefault();
  });
}

function listenToPointers(view) {
  const { frame } = view;
  const fingers = new Map();
  const spread = () => {
    const [one, other] = [...fingers.values()];
    return Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  };
  frame.addEventListener("wheel", (event) => {
    // The wheel without a key scrolls the page, unless the figure fills the screen.
    if (!event.ctrlKey && !event.metaKey && !frame.closest("dialog")) return;
    event.preventDefault();
    view.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), view.point(event));
  }, { passive: false });
  frame.addEventListener("dblclick", (event) => view.zoom(2, view.point(event)));
  frame.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    if (view.scale > 1.001) frame.setPointerCapture(event.pointerId);
  });
  frame.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const wide = fingers.size === 2 ? spread() : 0;
    const [x0, y0] = view.point(before), [x1, y1] = view.point(event);
    fingers.set(event.pointerId, event);
    if (wide) view.zoom(spread() / wide, view.point(event));
    else if (view.scale > 1.001) view.pan(x0 - x1, y0 - y1);
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) {
    frame.addEventListener(end, (event) => fingers.delete(event.pointerId));
  }
}

function enlarger(plot, view) {
  const button = build("button", { type: "button", textContent: "Enlarge" });
  button.addEventListener("click", () => {
    const open = plot.closest("dialog");
    if (open) return open.close();
    const place = build("span");
    const dialog = build("dialog");
    plot.replaceWith(place);
    dialog.append(plot);
    document.body.append(dialog);
    dialog.addEventListener("close", () => {
      place.replaceWith(plot);
      dialog.remove();
      view.reset();
      button.textContent = "Enlarge";
      button.focus();
    });
    button.textContent = "Close";
    dialog.showModal();
    view.frame.focus();
  });
  return button;
}

function zoomButtons(plot, view) {
  const button = (text, label, act) => {
    const node = build("button", { type: "button", textContent: text, ariaLabel: label, title: label });
    node.addEventListener("click", act);
    return node;
  };
  return build("div", { className: "zoom" },
    button("−", "Zoom out", () => view.zoom(1 / 1.5)),
    button("+", "Zoom in", () => view.zoom(1.5)),
    button("Reset", "Show the whole figure", () => view.reset()),
    enlarger(plot, view));
}

function hintAtMore(frame) {
  // On a small screen a figure is wider than its frame, whose edge fades until the end is reached.
  const look = () => {
    const rest = frame.scrollWidth - frame.clientWidth - frame.scrollLeft;
    frame.classList.toggle("more", rest > 4);
  };
  frame.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(frame);
}

function setUpFigure(plot) {
  const frame = plot.querySelector(".frame");
  if (!frame) return;
  const svg = frame.querySelector("svg");
  if (!svg) return;
  const view = new View(frame, svg);
  listenToKeys(view);
  listenToPointers(view);
  hintAtMore(frame);
  frame.title = "+ and − zoom, arrows move, 0 shows the whole; so do a double click, a drag and Ctrl with the wheel";
  frame.after(build("div", { className: "tools" }, ...chips(svg), zoomButtons(plot, view)));
}

setUpLight(document.querySelector(".theme"));
setUpContents(document.querySelector(".contents details"));
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
addEventListener("hashchange", unfold);
unfold();
document.querySelectorAll(".plot").forEach(setUpFigure);
if (matchMedia("(max-width: 68rem)").matches) document.querySelector(".contents details").open = false;
