"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  // Vega's expressions are compiled once; the pictures are drawn when they come into view, so
  // that a long page opens at once, and before printing.
  const waiting = new Map();
  async function draw(box) {
    if (!waiting.has(box)) return;
    const spec = waiting.get(box);
    waiting.delete(box);
    await autotuneDraw(box, spec);
  }

  function queue() {
    for (const box of document.querySelectorAll(".drawing")) {
      waiting.set(box, data.figures[box.dataset.figure]);
    }
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
    }, { rootMargin: "400px" });
    for (const box of waiting.keys()) seen.observe(box);
  }

  const drawAll = () => Promise.all([...waiting.keys()].map(draw));
  window.addEventListener("beforeprint", drawAll);
  window.autotune = { drawAll };

  function number(cell) {
    const raw = cell.dataset.value;
    return raw === undefined || raw === "" ? NaN : Number(raw);
  }

  function sort(table, column, header) {
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const way = ascending ? 1 : -1;
    rows.sort((a, b) => {
      const x = a.cells[column], y = b.cells[column];
      const p = number(x), q = number(y);
      if (Number.isNaN(p) && Number.isNaN(q)) return way * x.textContent.localeCompare(y.textContent);
      if (Number.isNaN(p)) return 1;
      if (Number.isNaN(q)) return -1;
      return way * (p - q);
    });
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...rows);
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => sort(table, column, header));
    });
  }

  for (const input of document.querySelectorAll("input[data-filters]")) {
    const table = document.getElementById(input.dataset.filters);
    const count = document.getElementById(input.dataset.filters + "-count");
    const rows = [...table.tBodies[0].rows];
    // Every word has to occur, so that "tp8 full" finds both in any order.
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = shown + " of " + rows.length;
    });
  }

  queue();
  dark.addEventListener("change", () => { queue(); });
})();
