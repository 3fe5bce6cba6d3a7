"""The special tokens and the chat template of small models that read images."""

VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *VISION]
# As Qwen3-VL's: a part with an image is the placeholder between its two marks.
TEMPLATE = (
    "{%- macro said(content) %}{%- if content is string %}{{ content }}{%- else %}{%- for part in content or [] %}"
    "{%- if part.type in ('image', 'image_url') %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}{%- endmacro %}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + said(m.content) + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
