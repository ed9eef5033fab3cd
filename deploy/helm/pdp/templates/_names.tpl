{{- define "pdp.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pdp.labels" -}}
{{ include "pdp.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "pdp.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "pdp.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "pdp.container" -}}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* The settings of the chart, and those of the values over them. */ -}}
{{- define "pdp.settings" -}}
{{- $tenant := dict "project" (printf "/project/%s" .Values.project.file) -}}
{{- if .Values.opa.enabled }}{{ $_ := mergeOverwrite $tenant (dict "engine" "sidecar" "opa_url" "http://127.0.0.1:8282") }}{{ end -}}
{{- if .Values.secrets.keys }}{{ $_ := set $tenant "audit_key_file" "/keys/audit_key" }}{{ end -}}
{{- $settings := dict "host" "0.0.0.0" "port" (int .Values.port) "first_token_file" "/run/pdp/first-token" "tenants" (dict "default" $tenant) -}}
{{- if .Values.secrets.tls }}{{ $_ := mergeOverwrite $settings (dict "tls_cert" "/tls/tls.crt" "tls_key" "/tls/tls.key") }}{{ end -}}
{{- toYaml (mergeOverwrite $settings (deepCopy .Values.settings)) }}
{{- end }}
