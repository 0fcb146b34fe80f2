# bash completion for mltools; made by `mltools completion bash`
_mltools()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words= kind= option=
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "prepare perturb finetune decoy generalise swap retrain grads attribute shapley states probe centroid merge mcog correlate score plot report windows inspect schema completion help --version -h --help" -- "$cur"))
        return
    fi
    # --option=value comes as three words
    [[ $cur == "=" ]] && cur= option=$prev
    [[ $prev == "=" ]] && option=${COMP_WORDS[COMP_CWORD-2]}
    [[ $prev == -* ]] && option=$prev
    case ${COMP_WORDS[1]} in
    prepare)
        case $option in
        --split) words="train validation test pool" ;;
        --from) kind=file ;;
        --top-classes) kind=none ;;
        --labels) words="names numbers" ;;
        --draw) words="hash python" ;;
        --seed) kind=none ;;
        --preset) words="paper released-code" ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--split --from --top-classes --labels --draw --carry-over --list --seed --preset -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           [[ $COMP_CWORD == 2 && $cur != -* ]] && words="wic rte mrpc cola boolq sst2 sst5 emotion implicithate stormfront reuters trec"
           ;;
        esac
        ;;
    perturb)
        case $option in
        --rate) kind=none ;;
        --transition) kind=file ;;
        --top-classes) kind=none ;;
        --draw) words="hash python" ;;
        --split-from) kind=none ;;
        --seed) kind=none ;;
        --preset) words="paper released-code" ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --classes) kind=none ;;
        --label-type) words="auto str" ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--rate --transition --stream --top-classes --draw --split-from --seed --preset --label --original-label --noisy --id --classes --label-type -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    finetune)
        case $option in
        --target) words="label original_label" ;;
        --freeze) kind=none ;;
        --train) kind=none ;;
        --aux) kind=file ;;
        --aux-text) kind=none ;;
        --aux-label) kind=none ;;
        --aux-lr) kind=none ;;
        --lr) kind=none ;;
        --epochs) kind=none ;;
        --warmup) kind=none ;;
        --weight-decay) kind=none ;;
        --clip) kind=none ;;
        --clip-scope) words="trainable all" ;;
        --memorised-at) kind=none ;;
        --memorised-metric) words="accuracy macro-f1" ;;
        --evaluate) words="memorised always last" ;;
        --validation) kind=file ;;
        --seed) kind=none ;;
        --preset) words="paper released-code" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --micro-batch) kind=none ;;
        --precision) words="fp32 bf16 fp16" ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --time-left) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--target --freeze --train --aux --aux-text --aux-label --aux-lr --lr --epochs --warmup --weight-decay --clip --clip-scope --frozen-dropout --raise-lr --memorised-at --memorised-metric --evaluate --validation --seed --preset --text --label --original-label --noisy --id --separator --label-type --max-length --batch-size --micro-batch --precision --device --threads --blocks --resume --time-left -n --dry-run --tag -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    decoy)
        case $option in
        --like) kind=file ;;
        --kind) words="random drift head" ;;
        --from) kind=file ;;
        --layers) kind=none ;;
        --seed) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--like --kind --from --layers --seed --device --threads --blocks -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    generalise)
        case $option in
        --run) kind=none ;;
        --runs) kind=none ;;
        --freeze) kind=none ;;
        --lr) kind=none ;;
        --epochs) kind=none ;;
        --warmup) kind=none ;;
        --weight-decay) kind=none ;;
        --clip) kind=none ;;
        --clip-scope) words="trainable all" ;;
        --seed) kind=none ;;
        --preset) words="paper released-code" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --micro-batch) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --shard) kind=none ;;
        --time-left) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --per-row) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--merge --run --runs --freeze --lr --epochs --warmup --weight-decay --clip --clip-scope --frozen-dropout --seed --preset --text --label --original-label --noisy --id --separator --label-type --max-length --batch-size --micro-batch --device --threads --blocks --shard --time-left -n --dry-run --tag -o --out --per-row --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    swap)
        case $option in
        --positions) words="all pooled others" ;;
        --clean-rows) kind=none ;;
        --write) kind=file ;;
        --min-noisy-accuracy) kind=none ;;
        --donor-is) words="clean other" ;;
        --layers) kind=none ;;
        --part) words="all attn mlp norm" ;;
        --preset) words="paper released-code" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --classes) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --precision) words="fp32 bf16" ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --resume) kind=file ;;
        --shard) kind=none ;;
        --time-left) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --per-row) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--positions --clean-rows --write --min-noisy-accuracy --strict --donor-is --layers --part --preset --text --label --original-label --noisy --id --classes --separator --label-type --max-length --batch-size --precision --device --threads --blocks --offload --resume --shard --time-left -n --dry-run --tag -o --out --per-row --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    retrain)
        case $option in
        --plan) words="all spread" ;;
        --lr) kind=none ;;
        --epochs) kind=none ;;
        --warmup) kind=none ;;
        --weight-decay) kind=none ;;
        --clip) kind=none ;;
        --clip-scope) words="trainable all" ;;
        --min-noisy-accuracy) kind=none ;;
        --layers) kind=none ;;
        --part) words="all attn mlp norm" ;;
        --seed) kind=none ;;
        --preset) words="paper released-code" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --classes) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --micro-batch) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --resume) kind=file ;;
        --shard) kind=none ;;
        --time-left) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--plan --train-head --no-train-head --lr --epochs --warmup --weight-decay --clip --clip-scope --frozen-dropout --min-noisy-accuracy --strict --layers --part --seed --preset --text --label --original-label --noisy --id --classes --separator --label-type --max-length --batch-size --micro-batch --device --threads --blocks --resume --shard --time-left -n --dry-run --tag -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    grads)
        case $option in
        --frozen) kind=file ;;
        --objective) words="loss logit" ;;
        --norm) words="l1 l2" ;;
        --leave-out) kind=none ;;
        --save) kind=file ;;
        --min-noisy-accuracy) kind=none ;;
        --part) words="all attn mlp norm" ;;
        --seed) kind=none ;;
        --preset) words="paper released-code" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --classes) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--frozen --objective --norm --noisy-only --leave-out --save --min-noisy-accuracy --strict --part --seed --preset --text --label --original-label --noisy --id --classes --separator --label-type --max-length --batch-size --device --threads --blocks -n --dry-run --tag -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    attribute)
        case $option in
        --nodes) kind=none ;;
        --gap) kind=none ;;
        --min-noisy-accuracy) kind=none ;;
        --donor-is) words="clean other" ;;
        --by) words="layer tensor" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --classes) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --per-row) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--nodes --gap --min-noisy-accuracy --strict --donor-is --by --text --label --original-label --noisy --id --classes --separator --label-type --max-length --batch-size --device --threads --blocks -n --dry-run --tag -o --out --per-row --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    shapley)
        case $option in
        --samples) kind=none ;;
        --until) kind=none ;;
        --min-noisy-accuracy) kind=none ;;
        --donor-is) words="clean other" ;;
        --seed) kind=none ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --classes) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --resume) kind=file ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--samples --until --min-noisy-accuracy --strict --donor-is --seed --text --label --original-label --noisy --id --classes --separator --label-type --max-length --batch-size --device --threads --blocks --resume -n --dry-run --tag -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    states)
        case $option in
        --dtype) words="float32 float16" ;;
        --position) words="auto first last" ;;
        --preset) words="paper released-code" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --classes) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--dtype --position --raw-last --preset --text --label --original-label --noisy --id --classes --separator --label-type --max-length --batch-size --device --threads --blocks --offload -n --dry-run -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    probe)
        case $option in
        --target) kind=none ;;
        --baseline) kind=file ;;
        --probe) words="mlp linear" ;;
        --hidden-layers) kind=none ;;
        --epochs) kind=none ;;
        --select-after) kind=none ;;
        --lr) kind=none ;;
        --seeds) kind=none ;;
        --min-noisy-accuracy) kind=none ;;
        --seed) kind=none ;;
        --preset) words="paper released-code" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--target --baseline --events --probe --hidden-layers --epochs --select-after --lr --seeds --allow-absent --min-noisy-accuracy --strict --seed --preset --text --label --original-label --noisy --id --separator --label-type --max-length --batch-size --device --threads --blocks -n --dry-run --tag -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    centroid)
        case $option in
        --crossing) words="first last stable" ;;
        --preset) words="paper released-code" ;;
        --text) kind=none ;;
        --label) kind=none ;;
        --original-label) kind=none ;;
        --noisy) kind=none ;;
        --id) kind=none ;;
        --separator) kind=none ;;
        --label-type) words="auto str" ;;
        --max-length) kind=none ;;
        --batch-size) kind=none ;;
        --device) kind=none ;;
        --threads) kind=none ;;
        --blocks) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --per-row) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--events --crossing --preset --text --label --original-label --noisy --id --separator --label-type --max-length --batch-size --device --threads --blocks --tag -o --out --per-row --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    merge)
        case $option in
        --items) kind=file ;;
        --made-by) kind=file ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--items --made-by -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    mcog)
        case $option in
        --value) kind=none ;;
        --over) kind=none ;;
        --by) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--by-layer --solved --value --over --strict --by --tag -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    correlate)
        case $option in
        --pivot) kind=none ;;
        --value) kind=none ;;
        --on) kind=none ;;
        --per) kind=none ;;
        --scale) words="none minmax" ;;
        --method) words="spearman pearson kendall" ;;
        --cluster) kind=none ;;
        --resamples) kind=none ;;
        --seed) kind=none ;;
        --preset) words="paper released-code" ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--pivot --value --on --per --pool --allow-mixed --scale --method --mean --cluster --resamples --strict --seed --preset --tag -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    score)
        case $option in
        --truth) kind=none ;;
        -k) kind=none ;;
        --value) kind=none ;;
        --per) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--truth -k --value --solved --per --strict --tag -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    plot)
        case $option in
        --value) kind=none ;;
        --overlay) kind=none ;;
        --pivot) kind=none ;;
        --facet) kind=none ;;
        --width) kind=none ;;
        --font-size) kind=none ;;
        --dpi) kind=none ;;
        --by) kind=none ;;
        -o|--out) kind=file ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--value --overlay --pivot --facet --width --font-size --dpi --strict --by -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           [[ $COMP_CWORD == 2 && $cur != -* ]] && words="heatmap layers probe centroid events matrix score maxima scatter"
           ;;
        esac
        ;;
    report)
        case $option in
        --by) kind=none ;;
        -o|--out) kind=none ;;
        --provenance) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--strict --by -o --out --force --provenance -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    windows)
        case $option in
        --width) kind=none ;;
        --plan) words="all spread" ;;
        --shard) kind=none ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--width --plan --shard -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    inspect)
        case $option in
        --layers) kind=none ;;
        --blocks) kind=none ;;
        --tag) kind=none ;;
        -o|--out) kind=file ;;
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="--json --command --layers --blocks --tag -o --out --force -q --quiet -v --verbose --progress --no-color --debug -h --help"
           ;;
        esac
        ;;
    schema)
        case $option in
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="-q --quiet -v --verbose --progress --no-color --debug -h --help"
           [[ $COMP_CWORD == 2 && $cur != -* ]] && words="attribution centroid checkpoint cog correlation difference epoch event file generalisation generalisation-score grad half layer probe provenance rows score shapley tensor window work"
           ;;
        esac
        ;;
    completion)
        case $option in
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="-q --quiet -v --verbose --progress --no-color --debug -h --help"
           [[ $COMP_CWORD == 2 && $cur != -* ]] && words="bash zsh fish"
           ;;
        esac
        ;;
    help)
        case $option in
        --progress) words="auto json none" ;;
        *) [[ $cur == -* ]] && words="-q --quiet -v --verbose --progress --no-color --debug -h --help"
           [[ $COMP_CWORD == 2 && $cur != -* ]] && words="prepare perturb finetune decoy generalise swap retrain grads attribute shapley states probe centroid merge mcog correlate score plot report windows inspect schema completion help"
           ;;
        esac
        ;;
    esac
    if [[ -n $words ]]; then
        COMPREPLY=($(compgen -W "$words" -- "$cur"))
    elif [[ $kind != none ]]; then
        local IFS=$'\n'
        compopt -o filenames 2>/dev/null
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}
complete -F _mltools mltools
