"""The trainer on this machine: PyTorch, peft and FSDP2."""
