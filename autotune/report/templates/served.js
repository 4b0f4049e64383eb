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
  for (const [name, spec] of Object.entries(figures)) {
    const box = document.querySelector(`.drawing[data-figure="${name}"]`);
    if (box) await autotuneDraw(box, spec);
  }
}
