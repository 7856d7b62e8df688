#!/bin/sh
# vllm-router 0.1.17 in front of three Cairn servers. docs/fleet.md says what each part is for. Further options go behind:
#   deploy/fleet/vllm-router.sh --policy consistent_hash
exec "${CAIRN_VLLM_ROUTER:-vllm-router}" \
    --host 127.0.0.1 --port 8080 \
    --worker-urls http://cairn-1:8000 http://cairn-2:8000 http://cairn-3:8000 \
    --policy cache_aware \
    --balance-abs-threshold 16 \
    --health-check-endpoint /health/ready --health-check-interval-secs 2 \
    --health-failure-threshold 1 --health-success-threshold 1 --health-check-timeout-secs 5 \
    --retry-initial-backoff-ms 500 --retry-backoff-multiplier 2 \
    --worker-startup-check-interval 1 \
    --request-timeout-secs 3600 \
    --max-payload-size 67108864 \
    --prometheus-host 127.0.0.1 --prometheus-port 29000 \
    "$@"
