// Makes the listed rows sortable, then inflates Plotly and draws the figures.
(function () {
  "use strict";

  // Numbers by value with missing ones last, text as text; rows that are equal keep their order.
  function compare(a, b, direction) {
    const x = parseFloat(a.dataset.value), y = parseFloat(b.dataset.value);
    if ("value" in a.dataset && "value" in b.dataset) {
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
      return direction * (x < y ? -1 : x > y ? 1 : 0);
    }
    return direction * a.textContent.localeCompare(b.textContent);
  }

  function sortBy(table, heading, column) {
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    rows.sort((a, b) => compare(a.cells[column], b.cells[column], direction));
    body.append(...rows);
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const button of table.tHead.querySelectorAll("button")) {
      const heading = button.closest("th");
      button.addEventListener("click", () => sortBy(table, heading, Number(button.dataset.column)));
    }
  }

  // As an inline script, since the page's policy knows it by its hash.
  async function loadPlotly() {
    const packed = atob(document.getElementById("library").textContent);
    const bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    if (!window.Plotly) throw new Error("the script of the figures did not start");
  }

  async function draw() {
    await loadPlotly();
    const figures = JSON.parse(document.getElementById("figure-data").textContent);
    const config = {
      responsive: true,
      displaylogo: false,
      // Named one by one: among Plotly's own choice is a button that sends the data to its makers.
      modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
      plotlyServerURL: "",
    };
    const drawInto = (place) => {
      const figure = figures[place.id.slice("figure-".length)];
      const displayModeBar = place.classList.contains("third") ? false : "hover";
      return window.Plotly.newPlot(place, figure.data, figure.layout, { ...config, displayModeBar });
    };
    for (const place of document.querySelectorAll(".figure")) {
      const fold = place.closest("details");
      // Inside a closed fold a figure has no size: draw it when the fold first opens.
      if (!fold || fold.open) await drawInto(place);
      else fold.addEventListener("toggle", () => drawInto(place).catch((error) => apologise(error.message)), { once: true });
    }
  }

  function apologise(reason) {
    const sorry = document.getElementById("sorry");
    sorry.textContent = "The figures cannot be drawn in this browser (" + reason + "). The tables are complete.";
    sorry.hidden = false;
    document.documentElement.dataset.figures = "missing";
  }

  if (typeof DecompressionStream === "undefined") {
    apologise("it is older than 2023");
  } else {
    draw().then(
      () => { document.documentElement.dataset.figures = "drawn"; },
      (error) => apologise(error.message),
    );
  }
})();
