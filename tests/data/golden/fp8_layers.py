"""Makes fp8_layers.safetensors: layer outputs of the demo checkpoint with activations rounded to e4m3 before FP8 linears.

States are float64 results of reference.py stored as f32. Needed beside *_fp8act because a rounding that flips changes the
last logits as much as leaving a rounding out does; the median over a layer's states tells the two apart.
"""
import json, os, struct
import numpy as np
from reference import HERE, Model, lut, st

LEVELS = lut[:127].astype(np.float64)  # 0 .. 448, ascending


def e4m3(x):
    a = np.abs(x)
    i = np.clip(np.searchsorted(LEVELS, a), 1, 126)
    low, high = LEVELS[i - 1], LEVELS[i]
    up = (a - low > high - a) | ((a - low == high - a) & (i % 2 == 0))  # ties to the even code
    return np.sign(x) * np.where(up, high, low)


def round_trip(x):
    x = x.astype(np.float32)
    y = np.empty_like(x)
    for g in range(0, x.shape[-1], 128):
        part = x[..., g:g + 128]
        scale = np.maximum(np.abs(part).max(-1, keepdims=True), np.float32(1e-4)) / np.float32(448)
        y[..., g:g + 128] = e4m3((part / scale).astype(np.float64)) * scale
    return y.astype(np.float64)


class Fp8Model(Model):
    def __init__(self, directory):
        super().__init__(directory)
        self.fp8 = {k[:-len('.weight_scale_inv')] for k in self.w if k.endswith('_scale_inv')}

    def lin(self, x, name):
        return super().lin(round_trip(x) if name in self.fp8 else x, name)

    def states(self, ids):
        out, x = {}, self.w['model.embed_tokens.weight'][ids].astype(np.float64)
        for i in range(self.c['num_hidden_layers']):
            p = f'model.layers.{i}.'
            out[f'layer{i}.attn'] = self.attn(self.norm(x, p + 'input_layernorm'), p + 'self_attn.')
            x = x + out[f'layer{i}.attn']
            ffn = self.moe if i >= self.c['first_k_dense_replace'] else self.mlp
            out[f'layer{i}.mlp'] = ffn(self.norm(x, p + 'post_attention_layernorm'), p + 'mlp.')
            x = x + out[f'layer{i}.mlp']
        return out


def write(path, tensors):
    header, data = {}, b''
    for name, x in tensors.items():
        kind = {'float32': 'F32', 'int32': 'I32'}[str(x.dtype)]
        header[name] = {'dtype': kind, 'shape': list(x.shape), 'data_offsets': [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text + data)


if __name__ == '__main__':
    model = Fp8Model(f'{HERE}/../../../models/tiny-deepseek-v3')
    ids = st(f'{HERE}/tiny-deepseek-v3/logits.safetensors')
    result = {}
    for prompt in ('p2', 'p3', 'p4', 'p6'):
        result[prompt + '.ids'] = ids[prompt + '.ids']
        for name, state in model.states(ids[prompt + '.ids']).items():
            result[f'{prompt}.{name}'] = state.astype(np.float32)
    write(f'{HERE}/tiny-deepseek-v3/fp8_layers.safetensors', result)
