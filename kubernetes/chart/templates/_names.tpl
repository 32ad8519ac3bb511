{{- define "name" -}}
{{ .Release.Name }}-binlog2s3
{{- end }}

{{- /* What a selector has: it never changes. */ -}}
{{- define "selector" -}}
app.kubernetes.io/name: binlog2s3
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "labels" -}}
{{ include "selector" . }}
app.kubernetes.io/component: streamer
app.kubernetes.io/part-of: binlog2s3
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* The configuration file: what the pod fixes, the values, and `config` over both. */ -}}
{{- define "toml" -}}
{{- $secret := "/run/secrets/binlog2s3" }}
{{- $s3 := dict "url" .Values.s3.url }}
{{- with .Values.s3.region }}{{ $_ := set $s3 "region" . }}{{ end }}
{{- $tables := dict
    "stream" (dict "source" .Values.source "metrics_listen" "0.0.0.0:9275")
    "mysql" (dict "host" .Values.mysql.host "user" .Values.mysql.user "ssl_mode" .Values.mysql.sslMode
      "ssl_ca" (printf "%s/ca.pem" $secret) "password_file" (printf "%s/mysql-password" $secret))
    "spool" (dict "dir" "/var/lib/binlog2s3" "max_bytes" "8G")
    "s3" $s3 }}
{{- range $table, $keys := mergeOverwrite $tables (deepCopy .Values.config) }}
[{{ $table }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ toRawJson $value }}
{{- end }}
{{ end }}
{{- end }}
