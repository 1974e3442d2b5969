// The admin page's one script: asks before each change, and draws live charts.


const token = () => document.querySelector('meta[name="kvmq-token"]').content;

// --- changes ---

const ask = document.getElementById("ask");
const askYes = document.getElementById("ask-yes");
let asked = null;

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-change]");
  if (!button) return;
  asked = button;
  document.getElementById("ask-title").textContent = button.dataset.title;
  document.getElementById("ask-text").textContent = button.dataset.text;
  document.getElementById("ask-error").textContent = "";
  askYes.textContent = button.textContent.trim();
  askYes.className = button.classList.contains("danger") ? "do danger" : "do";
  askYes.disabled = false;
  ask.showModal();
});

askYes.addEventListener("click", async () => {
  askYes.disabled = true;
  let error = "";
  try {
    const answer = await fetch("/do/" + asked.dataset.change, {
      method: "POST",
      headers: { "content-type": "application/json", "x-kvmq-token": token() },
      body: asked.dataset.given,
    });
    const told = await answer.json();
    if (answer.ok) {
      sessionStorage.setItem("told", told.done);
      location.reload();
      return;
    }
    error = told.error;
  } catch (failure) {
    error = "the server did not answer: " + failure.message;
  }
  document.getElementById("ask-error").textContent = error;
  askYes.disabled = false;
});

const told = sessionStorage.getItem("told");
if (told) {
  sessionStorage.removeItem("told");
  document.getElementById("told").textContent = told;
  setTimeout(() => { document.getElementById("told").textContent = ""; }, 8000);
}

// --- narrow screens ---

for (const table of document.querySelectorAll("table")) {
  const labels = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, i) => { cell.dataset.label = labels[i]; });
  }
  table.classList.add("labelled");
}
const current = document.querySelector("nav [aria-current]");
if (current) {
  const nav = current.parentElement;
  nav.scrollLeft = current.offsetLeft - nav.offsetLeft - (nav.clientWidth - current.clientWidth) / 2;
}

// --- charts ---

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 150, LEFT = 52, BOTTOM = 18, TOP = 6, KEPT = 90, EVERY = 2000;
const NAMES = { in_flight: "in flight", appended: "put", dead: "dead letters" };

function short(value, unit) {
  const step = unit === "bytes" ? 1024 : 1000;
  const units = unit === "bytes" ? ["B", "KiB", "MiB", "GiB", "TiB"] : ["", "k", "M", "G", "T"];
  let at = 0;
  while (value >= step && at < units.length - 1) { value /= step; at += 1; }
  const text = value < 10 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value).toString();
  return text + (units[at] ? " " + units[at] : "");
}

function ceiling(most, unit) {
  const base = unit === "bytes" ? 2 : 10;
  let limit = 1;
  while (limit < most) limit *= base;
  if (base === 10) for (const part of [0.2, 0.5]) if (limit * part >= most && limit * part >= 1) { limit *= part; break; }
  return limit;
}

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function points(looks, name, isRate) {
  const found = [];
  for (let i = isRate ? 1 : 0; i < looks.length; i++) {
    const now = looks[i];
    const value = isRate ? (now[name] - looks[i - 1][name]) * 1000 / (now.at - looks[i - 1].at) : now[name];
    found.push([now.at, Math.max(0, value)]);
  }
  return found;
}

function draw(figure, looks) {
  const names = figure.dataset.series.split(" ");
  const unit = figure.dataset.unit;
  const WIDTH = figure.querySelector("figcaption").clientWidth;
  const series = names.map((name) => points(looks, name, Boolean(figure.dataset.rate)));
  const most = ceiling(Math.max(1, ...series.flat().map((point) => point[1])), unit);
  const end = looks[looks.length - 1].at, begin = end - KEPT * EVERY;
  const x = (at) => LEFT + (WIDTH - LEFT) * (at - begin) / (end - begin);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": names.join(", ") });
  for (const part of [0, 0.5, 1]) {
    svg.append(element("line", { x1: LEFT, x2: WIDTH, y1: y(most * part), y2: y(most * part) }));
    svg.append(element("text", { x: LEFT - 6, y: y(most * part) + 4, "text-anchor": "end" }, short(most * part, unit)));
  }
  svg.append(element("text", { x: LEFT, y: HEIGHT - 3 }, `${KEPT * EVERY / 60000} min ago`));
  svg.append(element("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
  const legend = document.createElement("div");
  legend.className = "legend";
  series.forEach((found, number) => {
    const path = found.map(([at, value], i) => `${i ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    svg.append(element("path", { d: path, class: "s" + number }));
    const entry = document.createElement("span"), mark = document.createElement("i");
    mark.className = "s" + number;
    const last = found.length ? short(found[found.length - 1][1], unit) : "–";
    entry.append(mark, `${NAMES[names[number]] || names[number]} ${last}`);
    legend.append(entry);
  });
  figure.querySelector("svg")?.remove();
  figure.querySelector(".legend")?.remove();
  figure.append(svg, legend);
}

const charts = document.querySelector("[data-live]");
if (charts) {
  const looks = [];
  const look = async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(charts.dataset.live);
      if (!answer.ok) return;
      const found = await answer.json();
      if (looks.length && found.at <= looks[looks.length - 1].at) return;
      looks.push(found);
      if (looks.length > KEPT) looks.shift();
      for (const [name, value] of Object.entries(found)) {
        const card = document.getElementById("now-" + name);
        if (card) card.textContent = value.toLocaleString("en");
      }
      charts.querySelectorAll("figure").forEach((figure) => draw(figure, looks));
      charts.dataset.looks = looks.length;
    } catch {
      // The server may be starting again; the next look finds it.
    }
  };
  look();
  setInterval(look, EVERY);
}
