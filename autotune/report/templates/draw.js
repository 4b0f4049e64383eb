"use strict";
// Draws one figure into its place, in the colours of the reader's scheme.
async function autotuneDraw(box, spec) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  const ink = dark ? "#e9ebef" : "#16181d", line = dark ? "#383c45" : "#d5d8de";
  const config = {
    background: null, font: "system-ui, sans-serif",
    axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: ink, tickColor: ink },
    legend: { labelColor: ink, titleColor: ink, symbolFillColor: "#8c8c8c" },
    header: { labelColor: ink, titleColor: ink }, title: { color: ink }, view: { stroke: line },
    text: { color: ink } };
  const options = { actions: false, renderer: "svg", config,
                    tooltip: { theme: dark ? "dark" : "light" } };
  try {
    await vegaEmbed(box, spec, options);
    const picture = box.querySelector("svg");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", spec.description || "");
    box.dataset.drawn = "yes";
  } catch (error) {
    box.textContent = "This figure could not be drawn: " + error.message;
    box.dataset.drawn = "failed";
    console.error(error);
  }
}
