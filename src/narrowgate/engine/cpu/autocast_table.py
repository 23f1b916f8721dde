"""What CUDA's autocast does with each operator, as data, and where the CPU must differ.

The names and policies are those of torch's ``ATen/autocast_mode.h`` (the ``AT_FORALL_*`` lists,
2.11 to 2.14), frozen here; a test compares them with the dispatcher of the torch that is installed
and names what only some versions list. A name has its overload after a dot, as in the dispatcher,
without ``aten::``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "APPEND_DTYPE",
    "CPU_ONLY",
    "CUDA_ONLY",
    "FP32",
    "LOWER",
    "PROMOTE",
    "SET_DTYPE",
    "STOCK",
]


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


LOWER = _names(
    """
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum
    mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
    """
)
"""All floating arguments are cast to autocast's 16-bit format."""

FP32 = _names(
    """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm
    group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    linalg_matrix_sqrth logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
    """
)
"""All floating arguments are cast to FP32."""

SET_DTYPE = _names(
    """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
    """
)
"""The operator has a ``dtype`` argument; unless the caller set it, it is set to FP32."""

APPEND_DTYPE: Mapping[str, str] = MappingProxyType(
    {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
)
"""Operators without a ``dtype`` argument, and the overload with one that is called with FP32."""

PROMOTE = _names(
    """
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
    """
)
"""All floating arguments are cast to FP32 if one of them is FP32, else to the 16-bit format."""

STOCK = _names(
    """
    _convolution.deprecated addbmm addmm baddbmm binary_cross_entropy
    binary_cross_entropy_with_logits bmm cdist conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input cosine_embedding_loss hinge_embedding_loss
    huber_loss kl_div l1_loss linalg_matrix_sqrth linalg_vecdot linear margin_ranking_loss matmul mm
    mse_loss multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d poisson_nll_loss prelu
    prod prod.dim_int scaled_dot_product_attention smooth_l1_loss soft_margin_loss
    triplet_margin_loss
    """
)
"""CPU autocast has these already and does with them what CUDA's does; they are left to it.

One differs on purpose: CUDA refuses ``binary_cross_entropy`` (its input would be a 16-bit
probability), the CPU runs it in FP32. FP32 is right where it is reached, so it is not refused.
"""

CUDA_ONLY: Mapping[str, str] = MappingProxyType(
    {
        "cudnn_convolution": "a cuDNN kernel; the CPU reaches convolution",
        "cudnn_convolution_transpose": "a cuDNN kernel; the CPU reaches convolution",
        "_scaled_dot_product_flash_attention": "a CUDA kernel; the CPU has its own, reached "
        "through scaled_dot_product_attention",
        "_cudnn_rnn": "a cuDNN kernel, in torch's CUDA builds only; the CPU has its own",
        "_thnn_fused_lstm_cell": "a CUDA kernel; the CPU composes lstm_cell",
        "_thnn_fused_gru_cell": "a CUDA kernel; the CPU composes gru_cell",
    }
)
"""Operators at CUDA's autocast key that get none at the CPU's, each with the reason."""


def _reasons(*groups: tuple[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: reason for reason, names in groups for name in names.split()})


CPU_ONLY: Mapping[str, str] = _reasons(
    (
        "no 16-bit CPU kernel: linear algebra",
        """
        _lu_with_info cholesky cholesky_inverse cholesky_solve geqrf inverse linalg_cholesky
        linalg_cholesky_ex linalg_cond linalg_cond.p_str linalg_eig linalg_eigh linalg_eigvals
        linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq
        linalg_matrix_rank linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor
        linalg_matrix_rank.tol_tensor linalg_qr linalg_solve linalg_svd linalg_svdvals
        linalg_tensorinv linalg_tensorsolve lu_solve orgqr ormqr pinverse qr svd triangular_solve
        """,
    ),
    (
        "no 16-bit CPU kernel: Fourier transforms and complex numbers",
        """
        fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft
        fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn polar stft stft.center view_as_complex
        """,
    ),
    (
        "no 16-bit CPU kernel: quantiles, CTC, fake quantisation",
        """
        ctc_loss.IntList ctc_loss.Tensor fake_quantize_per_tensor_affine nanquantile
        nanquantile.scalar quantile quantile.scalar
        """,
    ),
    (
        "FP32 on the CPU only, wider than CUDA's and never less exact: pooling and padding",
        """
        adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool2d
        fractional_max_pool3d max_pool3d max_unpool2d max_unpool3d reflection_pad1d
        reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
        """,
    ),
    (
        "FP32 on the CPU only, wider than CUDA's and never less exact: other",
        "multilabel_margin_loss_forward trace",
    ),
    (
        "reached through an operator whose policy is CUDA's",
        """
        _grid_sampler_2d_cpu_fallback grid_sampler_2d grid_sampler_3d conv1d.padding conv2d.padding
        conv3d.padding cross_entropy_loss
        """,
    ),
    (
        "16-bit kernels which only the CPU has",
        "_addmm_activation _native_multi_head_attention mkldnn_rnn_layer",
    ),
    (
        "promotes mixed inputs, as the operator itself does on CUDA",
        "cat index_copy stack",
    ),
)
"""Operators that only CPU autocast lists and which stay as they are, each with the reason."""
