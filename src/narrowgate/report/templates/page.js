// Draws the charts in the colours of the style sheet, again when the scheme changes, and in light
// colours as wide as a sheet of paper for printing.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const narrow = window.matchMedia("(max-width: 44rem)");
  const coarse = window.matchMedia("(pointer: coarse)");
  const PAPER = 660;

  // Puts a colour in the place of var(--name), under keys that end in "color" only.
  const painted = (node, style, key) => {
    if (Array.isArray(node)) return node.map((inner) => painted(inner, style, key));
    if (node !== null && typeof node === "object") {
      return Object.fromEntries(Object.entries(node).map(([k, v]) => [k, painted(v, style, k)]));
    }
    const isColour = typeof node === "string" && key.endsWith("color") && node.startsWith("var(--");
    return isColour ? style.getPropertyValue(node.slice(4, -1)).trim() : node;
  };

  const draw = (width) => {
    const style = getComputedStyle(document.documentElement);
    for (const figure of figures) {
      const box = document.getElementById(`chart-${figure.name}`);
      const layout = painted(figure.layout, style, "");
      layout.width = width ?? box.clientWidth;
      layout.font.size = narrow.matches ? 12 : 13;
      // A finger that scrolls the page must not be taken for one that zooms the chart.
      layout.dragmode = coarse.matches ? false : "zoom";
      Plotly.react(box, painted(figure.data, style, ""), layout, {
        displayModeBar: false,
        showTips: false,
      });
    }
  };

  let opened = [];
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
    draw(PAPER);
  });
  window.addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    for (const details of opened) details.open = false;
    draw(undefined);
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(undefined));
  draw(undefined);
  // Wider or narrower: only the width changes. A chart's own height never does.
  const resized = new ResizeObserver((entries) => {
    if ("print" in document.documentElement.dataset) return;
    for (const entry of entries) {
      const width = Math.floor(entry.contentRect.width);
      if (width > 0 && entry.target.layout && entry.target.layout.width !== width) {
        Plotly.relayout(entry.target, { width });
      }
    }
  });
  for (const figure of figures) resized.observe(document.getElementById(`chart-${figure.name}`));
})();
