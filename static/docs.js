// Starts the vendored Swagger UI on our own description of the API.
addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("swagger");
  SwaggerUIBundle({
    url: place.dataset.openapi, domNode: place, deepLinking: true, docExpansion: "list",
    defaultModelsExpandDepth: 0, validatorUrl: null, tryItOutEnabled: true,
    presets: [SwaggerUIBundle.presets.apis], layout: "BaseLayout",
  });
});
