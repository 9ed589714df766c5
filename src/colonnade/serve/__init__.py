"""The prediction service: HTTP in front of a trained federation.

``predictor`` is the seat between HTTP and prediction: a predictor answers a gathered list of ids by
a deadline. In one process ``in_process_predictor`` sits there. Gathering, keys, limits, versions,
breakers and metrics are written once, above it. FastAPI and uvicorn are imported in ``http_routes``
and ``listening`` only.
"""
