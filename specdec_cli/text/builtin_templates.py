"""Chat templates by name, for files that have none (`--chat-template NAME`).

Formats as their authors document them. Models of the kind that has no system role get the system message at
the beginning of the first user turn.
"""

# For formats whose turns must alternate: the system message is taken out, the order checked.
_TAKE_SYSTEM = """\
{%- if messages and messages[0].role == 'system' -%}
    {%- set system, turns = messages[0].content | trim, messages[1:] -%}
{%- else -%}
    {%- set system, turns = '', messages -%}
{%- endif -%}
{%- for turn in turns -%}
    {%- if turn.role not in ['user', 'assistant'] -%}
        {{- raise_exception('this format has no role ' ~ turn.role) -}}
    {%- elif (turn.role == 'user') != (loop.index0 is even) -%}
        {{- raise_exception('user and assistant turns must alternate, beginning with user') -}}
    {%- endif -%}
{%- endfor -%}
"""

_CHATML = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

_LLAMA2 = (
    _TAKE_SYSTEM
    + """\
{%- for turn in turns -%}
    {%- if turn.role == 'user' -%}
        {{- bos_token + '[INST] ' -}}
        {%- if loop.first and system -%}{{- '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' -}}{%- endif -%}
        {{- turn.content | trim + ' [/INST]' -}}
    {%- else -%}
        {{- ' ' + turn.content | trim + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""
)

_LLAMA3 = """\
{{- bos_token -}}
{%- for message in messages -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}
    {{- message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

_GEMMA = (
    _TAKE_SYSTEM
    + """\
{{- bos_token -}}
{%- for turn in turns -%}
    {{- '<start_of_turn>' + ('user' if turn.role == 'user' else 'model') + '\\n' -}}
    {%- if loop.first and system -%}{{- system + '\\n\\n' -}}{%- endif -%}
    {{- turn.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""
)

_MISTRAL = (
    _TAKE_SYSTEM
    + """\
{{- bos_token -}}
{%- for turn in turns -%}
    {%- if turn.role == 'user' -%}
        {{- '[INST] ' -}}
        {%- if loop.first and system -%}{{- system + '\\n\\n' -}}{%- endif -%}
        {{- turn.content | trim + ' [/INST]' -}}
    {%- else -%}
        {{- ' ' + turn.content | trim + eos_token -}}
    {%- endif -%}
{%- endfor -%}
"""
)

_ZEPHYR = """\
{%- for message in messages -%}
    {{- '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""

_PHI3 = """\
{%- for message in messages -%}
    {{- '<|' + message.role + '|>\\n' + message.content | trim + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}
"""

_VICUNA = (
    _TAKE_SYSTEM
    + """\
{{- bos_token -}}
{%- if system -%}{{- system + '\\n\\n' -}}{%- endif -%}
{%- for turn in turns -%}
    {%- if turn.role == 'user' -%}
        {{- 'USER: ' + turn.content | trim + '\\n' -}}
    {%- else -%}
        {{- 'ASSISTANT: ' + turn.content | trim + eos_token + '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}
"""
)

_ALPACA = (
    _TAKE_SYSTEM
    + """\
{{- bos_token -}}
{%- if system -%}{{- system + '\\n\\n' -}}{%- endif -%}
{%- for turn in turns -%}
    {%- if turn.role == 'user' -%}
        {{- '### Instruction:\\n' + turn.content | trim + '\\n\\n' -}}
    {%- else -%}
        {{- '### Response:\\n' + turn.content | trim + eos_token + '\\n\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '### Response:\\n' -}}{%- endif -%}
"""
)

_DEEPSEEK = (
    _TAKE_SYSTEM
    + """\
{{- bos_token -}}
{%- if system -%}{{- system + '\\n\\n' -}}{%- endif -%}
{%- for turn in turns -%}
    {%- if turn.role == 'user' -%}
        {{- 'User: ' + turn.content | trim + '\\n\\n' -}}
    {%- else -%}
        {{- 'Assistant: ' + turn.content | trim + eos_token -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}
"""
)

_COMMAND_R = """\
{{- bos_token -}}
{%- set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} -%}
{%- for message in messages -%}
    {%- if message.role not in names -%}
        {{- raise_exception('this format has no role ' ~ message.role) -}}
    {%- endif -%}
    {{- '<|START_OF_TURN_TOKEN|><|' + names[message.role] + '_TOKEN|>' -}}
    {{- message.content | trim + '<|END_OF_TURN_TOKEN|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}{%- endif -%}
"""

_GRANITE = """\
{%- for message in messages -%}
    {{- '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content + '<|end_of_text|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}
"""

BUILTIN_TEMPLATES: dict[str, str] = {
    "chatml": _CHATML,
    "llama2": _LLAMA2,
    "llama3": _LLAMA3,
    "gemma": _GEMMA,
    "mistral": _MISTRAL,
    "zephyr": _ZEPHYR,
    "phi3": _PHI3,
    "vicuna": _VICUNA,
    "alpaca": _ALPACA,
    "deepseek": _DEEPSEEK,
    "command-r": _COMMAND_R,
    "granite": _GRANITE,
}
