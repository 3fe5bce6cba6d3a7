export NNODES=$SLURM_NNODES MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$(scontrol show node "$first" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2)
