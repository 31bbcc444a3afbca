// Starts the vendored Swagger UI on our own description of the API, in the theme of the page.
addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("swagger");
  const root = document.documentElement;
  const dress = () => root.classList.toggle("dark-mode", root.dataset.theme === "dark");
  dress();
  addEventListener("flashdeck:theme", dress);
  SwaggerUIBundle({
    url: place.dataset.openapi, domNode: place, deepLinking: true, docExpansion: "list",
    defaultModelsExpandDepth: 0, validatorUrl: null, tryItOutEnabled: true,
    presets: [SwaggerUIBundle.presets.apis], layout: "BaseLayout",
  });
});
