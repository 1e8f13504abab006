// Render the equations of Markdown pages (marked by arithmatex) and of notebooks.
for (const element of document.querySelectorAll(".arithmatex, .jp-RenderedMarkdown, .jp-MarkdownOutput")) {
  renderMathInElement(element, {
    delimiters: [
      { left: "$$", right: "$$", display: true },
      { left: "\\[", right: "\\]", display: true },
      { left: "\\(", right: "\\)", display: false },
      { left: "$", right: "$", display: false },
    ],
    throwOnError: false, // shows a wrong formula in red; a test finds it
  });
}
