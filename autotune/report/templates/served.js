"use strict";
// Draws the figures of an answer into their places.
async function autotuneShow(figures) {
  // The answer's HTML arrives by another message; wait until its places are there.
  for (let i = 0; i < 100; i++) {
    const missing = Object.keys(figures).filter(
      (name) => !document.querySelector(`.drawing[data-figure="${name}"]`));
    if (missing.length === 0) break;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = dark ? "#e9ebef" : "#16181d", line = dark ? "#383c45" : "#d5d8de";
  const config = {
    background: null, font: "system-ui, sans-serif",
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: ink, tickColor: ink },
    legend: { labelColor: ink, titleColor: ink, symbolFillColor: "#8c8c8c" },
    header: { labelColor: ink, titleColor: ink }, title: { color: ink }, view: { stroke: line } };
  for (const [name, spec] of Object.entries(figures)) {
    const box = document.querySelector(`.drawing[data-figure="${name}"]`);
    if (!box) continue;
    try {
      await vegaEmbed(box, spec, { actions: false, renderer: "svg", config });
      const picture = box.querySelector("svg");
      picture.setAttribute("role", "img");
      picture.setAttribute("aria-label", spec.description || "");
      box.dataset.drawn = "yes";
    } catch (error) {
      box.textContent = "This figure could not be drawn: " + error.message;
      box.dataset.drawn = "failed";
    }
  }
}
