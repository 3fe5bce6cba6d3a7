// Draws each chart from the table that follows it, and closes that table. Without JavaScript the table is open.
// Fewer than three points get no line and no band, because a line suggests a course that nobody has measured.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (element, name) => (element.dataset[name] === undefined ? null : Number(element.dataset[name]));

/** The columns of a table: x, and for each series its name, values and intervals, ordered by x. */
function read(table) {
  const heads = [...table.tHead.rows[0].cells];
  const columns = heads.map((head, place) => place).filter((place) => "series" in heads[place].dataset);
  const rows = [...table.tBodies[0].rows]
    .map((row) => ({ x: number(row.querySelector("th[data-v]") || row.cells[0], "v"), cells: [...row.cells] }))
    .filter((row) => row.x !== null)
    .sort((one, other) => one.x - other.x);
  const counted = heads.findIndex((head) => "count" in head.dataset);
  return {
    xs: rows.map((row) => row.x),
    counts: counted < 0 ? null : { name: heads[counted].textContent.trim(), values: rows.map((row) => number(row.cells[counted], "v")) },
    series: columns
      .map((place) => ({
        name: heads[place].textContent.trim(),
        values: rows.map((row) => number(row.cells[place], "v")),
        lows: rows.map((row) => number(row.cells[place], "low")),
        highs: rows.map((row) => number(row.cells[place], "high")),
      }))
      .filter((one) => one.values.some((value) => value !== null))
      .slice(0, 4),
  };
}

/** The form of all times on the pages: 2026-01-31 09:05, of this machine. */
function clock(seconds) {
  const at = new Date(1000 * seconds);
  const two = (value) => String(value).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** The interval of a single point. */
function bar(u, x, low, high) {
  if (low === null || high === null) return;
  u.ctx.beginPath();
  u.ctx.moveTo(u.valToPos(x, "x", true), u.valToPos(low, "y", true));
  u.ctx.lineTo(u.valToPos(x, "x", true), u.valToPos(high, "y", true));
  u.ctx.stroke();
}

function options(place, found, width) {
  const marks = JSON.parse(place.dataset.marks || "[]");
  const isTime = "time" in place.dataset;
  const axis = { stroke: css("--dim"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
  const series = [isTime ? { label: "time", value: (_, value) => (value === null ? "–" : clock(value)) } : { label: found.xName }];
  const bands = [];
  const few = found.xs.length < 60;
  const isLine = found.xs.length > 2;
  found.series.forEach((one, index) => {
    const colour = css(`--series-${index}`);
    series.push({ label: one.name, stroke: colour, width: 2, spanGaps: true, ...(isLine ? {} : { paths: () => null }), points: { show: few, size: 6 }, value: (_, value) => (value === null ? "–" : value.toFixed(2)) });
    if (one.highs.some((value) => value !== null)) {
      for (const side of ["high", "low"]) series.push({ label: `${one.name} ${side}`, width: 0, stroke: colour, points: { show: false }, spanGaps: true, value: (_, value) => (value === null ? "–" : value.toFixed(2)) });
      if (isLine) bands.push({ series: [series.length - 2, series.length - 1], fill: `${colour}26` });
    }
  });
  if (found.counts) series.push({ label: found.counts.name, scale: "count", stroke: css("--dim"), points: { show: false }, paths: () => null, value: (_, value) => (value === null ? "–" : String(value)) });
  const whole = (u, splits) => splits.map((value) => (Number.isInteger(value) ? value : ""));
  return {
    width, height: 230, series, bands,
    legend: { show: true, markers: { fill: (u, index) => u.series[index].stroke(u, index) } },
    cursor: { drag: { x: false, y: false } },
    scales: { x: { time: isTime }, count: { range: [0, 1] }, y: { range: (u, low, high) => [Math.min(0, low), high > 0 && high <= 1 ? 1 : high * 1.05 || 1] } },
    axes: [isTime ? { ...axis, values: (u, splits) => splits.map(clock), space: 110 } : { ...axis, values: whole }, { ...axis, size: 46 }],
    hooks: {
      init: [(u) => u.root.querySelectorAll(".u-legend .u-series").forEach((row, index) => { row.hidden = u.series[index].width === 0; })],
      draw: [(u) => {
        const ratio = window.devicePixelRatio || 1;
        u.ctx.save();
        u.ctx.strokeStyle = u.ctx.fillStyle = css("--dim");
        u.ctx.lineWidth = ratio;
        u.ctx.font = `${11 * ratio}px system-ui, sans-serif`;
        if (!isLine) for (const one of found.series) found.xs.forEach((x, at) => bar(u, x, one.lows[at], one.highs[at]));
        let free = -Infinity;
        for (const mark of marks) {
          const x = Math.round(u.valToPos(mark.x, "x", true));
          u.ctx.setLineDash([3 * ratio, 3 * ratio]);
          u.ctx.beginPath();
          u.ctx.moveTo(x, u.bbox.top);
          u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
          u.ctx.stroke();
          if (x > free) {
            u.ctx.fillText(mark.label, x + 3 * ratio, u.bbox.top + 10 * ratio);
            free = x + u.ctx.measureText(mark.label).width + 8 * ratio;
          }
        }
        u.ctx.restore();
      }],
    },
  };
}

/** `anew`: also if the numbers are the same, for other colours or another width. */
function draw(place, anew) {
  const table = place.parentElement.querySelector("table:has([data-series])");
  if (!table) return;
  const found = read(table);
  if (found.xs.length < 2 || found.series.length === 0) return;
  found.xName = table.tHead.rows[0].querySelector("th:not(:has(.hide))").textContent.trim();
  const data = [found.xs];
  for (const one of found.series) {
    data.push(one.values);
    if (one.highs.some((value) => value !== null)) data.push(one.highs, one.lows);
  }
  const shown = JSON.stringify([found, place.dataset.marks]);
  if (place.shown === shown && !anew) return;
  place.shown = shown;
  if (found.counts) data.push(found.counts.values);
  if (place.plot) place.plot.destroy();
  place.replaceChildren();
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", `${place.dataset.title}; the table below has the numbers`);
  const parent = getComputedStyle(place.parentElement);
  const width = place.parentElement.clientWidth - parseFloat(parent.paddingLeft) - parseFloat(parent.paddingRight);
  place.plot = new uPlot(options(place, found, width), data, place);
  const details = table.closest("details.table");
  if (details && !place.drawn) details.open = false;
  place.drawn = true;
}

const drawAll = (anew) => document.querySelectorAll(".chart").forEach((place) => draw(place, anew));
drawAll(true);
addEventListener("followed", () => drawAll(false));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => drawAll(true), 150); });
